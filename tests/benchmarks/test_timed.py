"""Servers that only wait: what they return, and for how long."""

from types import SimpleNamespace

import pytest

from benchmarks import timed
from benchmarks.timed import Speed, TimedServer

PARAMETERS = {"max_tokens": 100}


def test_a_request_takes_as_long_as_its_new_tokens_and_those_generated() -> None:
    assert Speed(prefill=0.001, decode=0.01, load=2.0).seconds(50, 20) == pytest.approx(2 * (0.05 + 0.2))


async def test_only_tokens_that_a_conversation_has_not_seen_are_prefilled(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(timed, "asyncio", SimpleNamespace(sleep=sleep))
    server = TimedServer([[7]], 0, Speed(prefill=0.05, decode=0.0), seed="a", lengths=(5, 5))
    first = await server.generate("one", prompt_ids=[1] * 20, sampling_params=PARAMETERS)
    await server.generate("one", prompt_ids=[1] * 20 + first.token_ids, sampling_params=PARAMETERS)
    await server.generate("two", prompt_ids=[1] * 20, sampling_params=PARAMETERS)
    assert waits == pytest.approx([1, 0, 1])


async def test_lengths_follow_from_seed_conversation_and_turn_whatever_else_is_asked() -> None:
    async def lengths(seed: str, *others: str) -> list[int]:
        server = TimedServer([[7, 8, 9]], 0, Speed(0, 0), seed=seed, lengths=(10, 90))
        found = []
        for _ in range(4):
            for other in others:
                await server.generate(other, prompt_ids=[1], sampling_params=PARAMETERS)
            output = await server.generate("mine", prompt_ids=[1], sampling_params=PARAMETERS)
            assert output.token_ids[-1] == 0 and output.token_ids[:3] == [7, 8, 9]
            assert len(output.log_probs or []) == len(output.token_ids)
            found.append(len(output.token_ids))
        return found

    mine = await lengths("a")
    assert mine == await lengths("a", "x", "y") and len(set(mine)) > 1
    assert mine != await lengths("b")


async def test_texts_without_lengths_are_returned_whole() -> None:
    server = TimedServer([[7, 8, 9]], 0, Speed(0, 0), seed="a")
    output = await server.generate("one", prompt_ids=[1], sampling_params=PARAMETERS)
    assert output.token_ids == [7, 8, 9, 0]
