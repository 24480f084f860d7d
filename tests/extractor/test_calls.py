"""The extractor's calls with a scripted model; one token is one character."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from one_reply import Script

from verl_comprl.experience.schema import (
    Add,
    DistillationRequest,
    Retain,
    Return,
    Update,
    Upvote,
    derive_id,
)
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.extractor.generation_record import CallKind
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.extractor.prompts import distill_messages, render_trajectory

MakeCalls = Callable[..., ExtractorCalls]
MakeRequest = Callable[..., DistillationRequest]


async def test_distill_returns_operations_and_the_record_of_the_call(
    make_calls: MakeCalls, make_request: MakeRequest, tokenizer: Any
) -> None:
    reply = (
        "I think.</think>"
        '<answer>[{"operation": "update", "ids": [2, 3], "title": "T", "content": "C"},'
        '{"operation": "return"}]</answer>'
    )
    script = Script(reply)
    request = make_request(
        "episode",
        success=False,
        step=12,
        instructions="Move.",
        final_observation="The door stays shut.",
        experience_ids=("a", "b"),
        experience_texts=("guide", "asked"),
    )
    answer, record = await make_calls(script).distill(request, ["near"])

    assert answer.operations == (Update(ids=(2, 3), title="T", content="C"), Return()) and not answer.errors
    trajectory = render_trajectory(request.turns, "The door stays shut.")
    messages = distill_messages("Move.", request.goal, ["guide", "asked"], trajectory, success=False, similar=["near"])
    assert list(record.prompt_ids) == tokenizer.apply_chat_template(messages)
    assert script.prompts == [tokenizer.decode(record.prompt_ids)]
    assert (record.id, record.kind) == (derive_id("distill", "episode"), CallKind.DISTILL)
    assert tokenizer.decode(record.response_ids) == reply
    assert len(record.response_log_probs) == len(reply)
    assert list(record.response_log_probs[:3]) == pytest.approx([0.0, -0.01, -0.02])
    assert (record.weight_version, record.created_step) == (7, 12)
    assert (record.train_count, record.last_trained) == (0, None)


@pytest.mark.parametrize("log_prob", [math.nan, -math.inf])
async def test_log_probs_that_are_not_finite_are_refused(tokenizer: Any, log_prob: float) -> None:
    async def generate(prompt: Prompt) -> Generation:
        return Generation([97, 98], [-0.1, log_prob], 0)

    with pytest.raises(ValueError, match="log-prob that is not finite"):
        calls = ExtractorCalls(tokenizer, generate, max_prompt_tokens=10_000, max_operations=3)
        await calls.answer("the entry", "which way?", 1)


async def test_tokens_of_all_calls_are_counted_as_the_back_end_states_them(
    tokenizer: Any, make_request: MakeRequest
) -> None:
    sampled = [Generation([97, 98], [0.0, 0.0], 0), Generation([], [], 0, text="?", usage=(7, 3))]
    tokens: Counter[str] = Counter(response=1)

    async def generate(prompt: Prompt) -> Generation:
        assert prompt.ids == tokenizer.apply_chat_template(prompt.messages)
        return sampled.pop(0)

    calls = ExtractorCalls(tokenizer, generate, max_prompt_tokens=10_000, max_operations=3, tokens=tokens)
    _, record = await calls.answer("the entry", "which way?", 1)
    assert tokens == {"prompt": len(record.prompt_ids), "response": 3}
    await calls.distill(make_request("a"))
    assert tokens == {"prompt": len(record.prompt_ids) + 7, "response": 6}


async def test_the_same_episode_gives_the_same_record_id(make_calls: MakeCalls, make_request: MakeRequest) -> None:
    calls = make_calls(Script("?"))
    first = (await calls.distill(make_request("a")))[1].id
    assert (await calls.distill(make_request("a")))[1].id == first
    assert (await calls.distill(make_request("b")))[1].id != first


async def test_allowed_operations_depend_on_the_call(make_calls: MakeCalls, make_request: MakeRequest) -> None:
    adds = ",".join('{"operation": "add", "title": "t", "content": "c"}' for _ in range(3))
    answer, _ = await make_calls(Script(f"<answer>[{adds}]</answer>"), max_operations=2).distill(make_request("a"))
    assert answer.operations == (Add(title="t", content="c"),) * 2
    assert [error.kind for error in answer.errors] == ["too_many"]

    update = '<answer>[{"operation": "update", "ids": [2], "title": "t", "content": "c"}]</answer>'
    answer, _ = await make_calls(Script(update)).distill(make_request("a"), ["only one"])
    assert not answer.format_ok and answer.errors[0].kind == "bad_index"

    answer, record = await make_calls(Script(f"<answer>[{adds}]</answer>")).merge(["x", "y"], 3, listed=["1", "2"])
    assert not answer.format_ok and record.kind == CallKind.MERGE


async def test_only_entries_that_the_episode_read_can_be_voted_on(
    make_calls: MakeCalls, make_request: MakeRequest
) -> None:
    votes = ",".join(f'{{"operation": "upvote", "ids": [{index}]}}' for index in (1, 2, 3))
    read = {"experience_ids": ("a", "b"), "experience_texts": ("guide", "asked")}
    calls = make_calls(Script(f"<answer>[{votes}]</answer>"), votes=True)
    answer, _ = await calls.distill(make_request("a", **read), ["near"])
    assert answer.operations == (Upvote(ids=(1,)), Upvote(ids=(2,)))
    assert [error.kind for error in answer.errors] == ["bad_index"]
    answer, _ = await calls.distill(make_request("free"), ["near", "nearer", "nearest"])
    assert not answer.operations


async def test_an_answer_that_cannot_be_parsed_still_has_a_record(
    make_calls: MakeCalls, make_request: MakeRequest, tokenizer: Any
) -> None:
    answer, record = await make_calls(Script("no idea")).distill(make_request("a"))
    assert not answer.format_ok and [error.kind for error in answer.errors] == ["no_answer"]
    assert tokenizer.decode(record.response_ids) == "no idea"


async def test_merge_lists_the_chunk_and_returns_operations_and_record(make_calls: MakeCalls) -> None:
    script = Script('<answer>[{"operation": "retain", "ids": [1, 3]}]</answer>')
    calls = make_calls(script)
    answer, record = await calls.merge(["x", "y", "z"], 5, listed=["1", "2", "3"])
    assert answer.operations == (Retain(ids=(1, 3)),)
    assert "1. x\n\n2. y\n\n3. z" in script.prompts[0]
    assert (record.kind, record.created_step, record.weight_version) == (CallKind.MERGE, 5, 7)


async def test_only_a_merge_that_is_repeated_with_the_same_answer_has_the_same_record_id(make_calls: MakeCalls) -> None:
    script = Script("?")
    calls = make_calls(script)

    async def merge(texts: str = "xyz", step: int = 5, listed: str = "123") -> str:
        return (await calls.merge([*texts], step, listed=[*listed]))[1].id

    first = await merge()
    assert await merge() == first  # a resumed run repeats it
    others = [await merge(step=6), await merge("xy", listed="12"), await merge(listed="456")]  # those are exact copies
    script.reply = "??"  # a resumed run samples another answer
    others.append(await merge())
    assert len({first, *others}) == 5


@pytest.mark.parametrize(("reply", "text"), [("hm</think><answer> go left </answer>", "go left"), ("go left", None)])
async def test_answer_returns_text_and_record(make_calls: MakeCalls, reply: str, text: str | None) -> None:
    script = Script(reply)
    answer, record = await make_calls(script).answer("the entry", "which way?", 6)
    assert answer == text and "the entry" in script.prompts[0] and "which way?" in script.prompts[0]
    assert (record.kind, record.created_step) == (CallKind.ANSWER, 6)
