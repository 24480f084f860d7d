"""The endpoint back end against a local HTTP server: requests, answers, failures."""

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, refusal
from openai import APIStatusError, APITimeoutError
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from verl_comprl.experience.schema import Add, DistillationRequest, Retain
from verl_comprl.extractor.calls import ExtractorCalls, Sampling
from verl_comprl.extractor.config import EndpointConfig
from verl_comprl.extractor.endpoint import Endpoint, EndpointError
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.extractor.prompts import distill_messages, render_trajectory

PROMPT = Prompt([{"role": "system", "content": "Rules."}, {"role": "user", "content": "Question?"}], [1, 2, 3])
ADD = '<answer>[{"operation": "add", "title": "T", "content": "C"}]</answer>'


@pytest.fixture
def served() -> Iterator[ChatEndpoint]:
    served = ChatEndpoint(lambda messages: "advice")
    served.server.start()
    yield served
    served.server.stop()


def connect(served: ChatEndpoint, *, key: str = "", top_k: int = -1, **settings: Any) -> Endpoint:
    config = EndpointConfig(url=served.url, model="teacher", **settings)
    return Endpoint(config, key, Sampling(temperature=0.5, top_p=0.9, top_k=top_k, max_tokens=64))


async def test_messages_are_sent_as_messages_and_text_and_usage_come_back(served: ChatEndpoint) -> None:
    generation = await connect(served, key="secret")(PROMPT)
    assert (generation.text, generation.usage) == ("advice", (11, 5))
    assert (generation.token_ids, generation.log_probs) == ([], [])
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 64}
    assert served.requests == [{"model": "teacher", "messages": PROMPT.messages, **sampling}]
    assert served.keys == {"Bearer secret"}


async def test_untrusted_tags_that_may_be_tokens_of_its_model_are_broken(served: ChatEndpoint) -> None:
    rules = {"role": "system", "content": "Write <my_answer>."}
    await connect(served)(Prompt([rules, {"role": "user", "content": "</think> a <start_function_call>"}], [1]))
    assert served.requests[0]["messages"] == [rules, {"role": "user", "content": "< /think> a < start_function_call>"}]


async def test_parameters_outside_of_openais_schema(served: ChatEndpoint) -> None:
    await connect(served, top_k=20, length_parameter="max_completion_tokens")(PROMPT)
    (request,) = served.requests
    assert request["top_k"] == 20 and request["max_completion_tokens"] == 64 and "max_tokens" not in request


async def test_refusals_that_may_pass_are_retried(served: ChatEndpoint) -> None:
    served.failures = [refusal(429), refusal(503)]
    assert (await connect(served)(PROMPT)).text == "advice"
    assert len(served.requests) == 3


async def test_retries_are_limited(served: ChatEndpoint) -> None:
    served.failures = [refusal(429) for _ in range(9)]
    with pytest.raises(APIStatusError):
        await connect(served, retries=2)(PROMPT)
    assert len(served.requests) == 3


async def test_a_key_that_is_refused_is_not_tried_again(served: ChatEndpoint) -> None:
    served.failures = [refusal(401)]
    with pytest.raises(APIStatusError, match="401"):
        await connect(served)(PROMPT)
    assert len(served.requests) == 1


async def test_a_late_answer_is_given_up_and_requested_again(
    served: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client sends counts: on a busy machine a request may not arrive in time either."""
    served.delay = 600.0
    endpoint = connect(served, timeout=0.2, retries=1)
    http, sent = endpoint._client._client, list[Any]()
    send = http.send

    async def noted(request: Any, **options: Any) -> Any:
        sent.append(request)
        return await send(request, **options)

    monkeypatch.setattr(http, "send", noted)
    with pytest.raises(APITimeoutError):
        await endpoint(PROMPT)
    assert len(sent) == 2


@pytest.mark.parametrize(("drops", "text", "requests"), [(60, "advice", 2), (10, "late", 1)])
async def test_an_answer_that_comes_in_drops_has_ten_times_as_long_in_all(
    served: ChatEndpoint, drops: int, text: str, requests: int
) -> None:
    """Services send blank lines while a request waits its turn."""

    async def answer() -> AsyncIterator[bytes]:
        for _ in range(drops):
            yield b"\n"
            await asyncio.sleep(0.1)
        yield b'{"choices": [{"message": {"content": "late"}}]}'

    served.failures = [StreamingResponse(answer(), media_type="application/json")]
    assert (await connect(served, timeout=0.4)(PROMPT)).text == text and len(served.requests) == requests


async def test_no_more_requests_at_once_than_allowed(served: ChatEndpoint) -> None:
    endpoint = connect(served, max_concurrent=3)
    served.together, served.delay = 3, 0.25  # in which more could come
    await asyncio.gather(*(endpoint(PROMPT) for _ in range(9)))
    assert served.most_in_flight == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Response('{"choices": [{"mess', media_type="application/json"), "is not JSON"),
        (Response("Bad gateway", media_type="text/plain"), "has no message: Bad gateway"),
        (Response("{}", media_type="application/json"), "has no message"),
        (Response('{"choices": []}', media_type="application/json"), "has no message"),
        (Response('{"choices": [{"index": 0}]}', media_type="application/json"), "has no message"),
        (Response("[]", media_type="application/json"), "has no message"),
    ],
)
async def test_unusable_answers_are_named(served: ChatEndpoint, answer: Response, message: str) -> None:
    served.failures = [answer]
    with pytest.raises(EndpointError, match=message):
        await connect(served, retries=0)(PROMPT)


async def test_an_answer_without_usage_is_used_and_its_tokens_are_not_counted(served: ChatEndpoint) -> None:
    served.change = lambda answer: {name: value for name, value in answer.items() if name != "usage"}
    generation = await connect(served)(PROMPT)
    assert (generation.text, generation.usage) == ("advice", (0, 0))


@pytest.mark.parametrize("count", ["7", 1e308, [1], -5, True, None, 2**40])
async def test_a_token_count_that_is_none_is_not_added_up(served: ChatEndpoint, tokenizer: Any, count: Any) -> None:
    served.change = lambda answer: {**answer, "usage": {"prompt_tokens": count, "completion_tokens": 5}}
    tokens = Counter[str]()
    calls = ExtractorCalls(tokenizer, connect(served), max_prompt_tokens=100_000, max_operations=3, tokens=tokens)
    for _ in range(2):
        await calls.answer("entry", "question", 1)
    assert tokens == {"prompt": 0, "response": 10}


async def test_an_answer_without_text_is_an_empty_one(served: ChatEndpoint) -> None:
    served.change = lambda answer: {**answer, "choices": [{"index": 0, "message": {"content": None}}]}
    assert (await connect(served)(PROMPT)).text == ""


async def test_it_travels_to_another_process_with_open_connections(served: ChatEndpoint) -> None:
    endpoint = connect(served, key="secret")
    await endpoint(PROMPT)
    again: Endpoint = pickle.loads(pickle.dumps(endpoint))
    assert (await again(PROMPT)).text == "advice" and served.keys == {"Bearer secret"}


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (JSONResponse({"error": {"message": "too\nlong"}}, 400), "Error code: 400 - too"),
        (JSONResponse({"error": "too long", "type": "x"}, 422), "Error code: 422 - too long"),
        (JSONResponse({"detail": "no " * 100}, 400), "Error code: 400 - {'detail': '" + "no " * 62 + "no"),
        (PlainTextResponse("<html>\n  gone", 404), "Error code: 404 - <html> gone"),
        (Response(status_code=400), "Error code: 400"),
    ],
)
async def test_the_check_quotes_answers_of_any_form(served: ChatEndpoint, answer: Response, shown: str) -> None:
    served.failures = [answer]
    with pytest.raises(EndpointError) as error:
        await connect(served).check()
    assert str(error.value).endswith(f"with model=teacher: {shown}")


async def test_the_check_asks_for_a_few_tokens(served: ChatEndpoint) -> None:
    await connect(served).check()
    assert [request["max_tokens"] for request in served.requests] == [16]


async def test_the_check_names_address_model_and_reason(served: ChatEndpoint) -> None:
    served.failures = [refusal(401)]
    with pytest.raises(EndpointError, match=rf"endpoint\.url={served.url} with model=teacher: .*401.*provoked"):
        await connect(served).check()
    served.server.stop()
    with pytest.raises(EndpointError, match="Connection error"):
        await connect(served, retries=0).check()
    served.server.start()


async def test_a_distillation_through_an_endpoint(
    served: ChatEndpoint, tokenizer: Any, make_request: Callable[..., DistillationRequest]
) -> None:
    served.reply = lambda messages: ADD
    request = make_request("episode")
    calls = ExtractorCalls(tokenizer, connect(served), max_prompt_tokens=100_000, max_operations=3)
    answer, record = await calls.distill(request)
    assert answer.operations == (Add(title="T", content="C"),)
    assert list(record.response_ids) == [] == list(record.response_log_probs)
    expected = distill_messages("", request.goal, [], render_trajectory(request.turns), success=True)
    assert served.requests[0]["messages"] == expected


async def test_an_answer_with_half_an_emoji_is_merged_as_any_other(served: ChatEndpoint, tokenizer: Any) -> None:
    reply = '<answer>[{"operation": "retain", "ids": [1]}]</answer> \ud83d'
    body = json.dumps({"choices": [{"message": {"content": reply}}]})
    served.failures = [Response(body, media_type="application/json")]
    calls = ExtractorCalls(tokenizer, connect(served), max_prompt_tokens=100_000, max_operations=3)
    answer, _ = await calls.merge(["x"], 5, listed=["1"])
    assert answer.operations == (Retain(ids=(1,)),)
