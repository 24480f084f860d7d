"""A generation that hangs, or whose server has died, as the manager sees it."""

import asyncio

import httpx2
import pytest
from openai import APIConnectionError, APIStatusError, APITimeoutError
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from verl_comprl.extractor.calls import Generation
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.manager.availability import ExtractorGone, ExtractorUnreachable
from verl_comprl.manager.server_calls import bounded
from verl_comprl.platform import pauses
from verl_comprl.platform.pauses import PausableClock
from verl_comprl.platform.under_way import under_way


def raised_remotely(error: Exception) -> Exception:
    """Return an exception of a server's actor as the caller gets it."""
    return RayTaskError("generate", "a traceback", error).as_instanceof_cause()


@pytest.mark.parametrize("error", [ActorDiedError(), raised_remotely(EngineDeadError())])
async def test_a_server_or_an_engine_that_has_died_is_gone(error: Exception) -> None:
    async def generate(_: Prompt) -> Generation:
        raise error

    with pytest.raises(ExtractorGone):
        await bounded(generate, 5)(Prompt([], [1]))


REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")


def refused(code: int) -> APIStatusError:
    return APIStatusError("refused", response=httpx2.Response(code, request=REQUEST), body=None)


@pytest.mark.parametrize("error", [APIConnectionError(request=REQUEST), *map(refused, (429, 502, 503, 504))])
async def test_an_endpoint_that_takes_no_requests_is_unreachable(error: Exception) -> None:
    async def generate(_: Prompt) -> Generation:
        raise error

    with pytest.raises(ExtractorUnreachable):
        await bounded(generate, 5)(Prompt([], [1]))


@pytest.mark.parametrize(
    "error",
    [
        raised_remotely(ValueError("too long")),
        ActorUnavailableError("busy", None),
        APITimeoutError(request=REQUEST),
        refused(400),
        refused(500),
    ],
)
async def test_another_failure_is_one_of_the_request(error: Exception) -> None:
    async def generate(_: Prompt) -> Generation:
        raise error

    with pytest.raises(type(error)):
        await bounded(generate, 5)(Prompt([], [1]))


async def test_a_generation_can_be_seen_while_it_runs() -> None:
    async def generate(_: Prompt) -> Generation:
        assert [work.what for work in under_way()] == ["generation of the extractor"]
        return Generation([1], [-0.5], 0)

    assert (await bounded(generate, 5)(Prompt([], [1]))).token_ids == [1]
    assert under_way() == []


async def test_a_generation_that_hangs_is_given_up() -> None:
    async def generate(prompt: Prompt) -> Generation:
        await asyncio.sleep(60 if prompt.ids else 0)
        return Generation([1], [-0.5], 0)

    assert (await bounded(generate, 0.05)(Prompt([], []))).token_ids == [1]
    with pytest.raises(TimeoutError):
        await bounded(generate, 0.05)(Prompt([], [1]))


async def test_a_pause_of_the_actors_servers_which_may_be_asked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = PausableClock()
    monkeypatch.setattr(pauses, "_clock", clock)

    async def generate(_: Prompt) -> Generation:
        await asyncio.sleep(0.3)
        return Generation([1], [0.0], 0)

    clock.pause(True)
    assert (await bounded(generate, 0.05)(Prompt([], [1]))).token_ids == [1]
    clock.pause(False)
    await asyncio.sleep(0)  # for the clock, which was told from another thread, as far as it knows
    with pytest.raises(TimeoutError):
        await bounded(generate, 0.05)(Prompt([], [1]))
