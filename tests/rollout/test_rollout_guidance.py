"""Choice of the guided slots, and how long a rollout waits for the manager."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.manager.messages import UNAVAILABLE, Answer, Guide
from verl_comprl.platform import pauses
from verl_comprl.rollout import guidance as guidance_module
from verl_comprl.rollout.guidance import Guidance, is_guided_slot


@given(half=st.integers(1, 8), step=st.integers(1, 100), warmup=st.integers(0, 10))
def test_half_of_a_group_is_guided_after_warm_up_and_none_before(half, step, warmup):
    guided = [is_guided_slot(session, 2 * half, 0.5, step, warmup) for session in range(2 * half)]
    assert guided == ([True] * half + [False] * half if step > warmup else [False] * 2 * half)


@pytest.mark.parametrize(("fraction", "expected"), [(0.25, 2), (0.75, 6)])
def test_other_shares(fraction, expected):
    assert sum(is_guided_slot(session, 8, fraction, 1, 0) for session in range(8)) == expected


class HangingManager:
    """Answers when ``gate`` is open; its methods are called with Ray's ``remote``."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.called: list[str] = []
        self.arguments: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        async def answer() -> Any:
            await self.gate.wait()
            answers = {"guide": Guide("found", "text"), "search_and_ask": Answer("answered", "text"), "report": True}
            return answers[name]

        def call(*arguments: Any, **_: Any) -> Any:
            self.called.append(name)
            self.arguments.append(arguments)
            return asyncio.ensure_future(answer())

        return SimpleNamespace(remote=call)


@pytest.fixture
def manager() -> HangingManager:
    return HangingManager()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, manager: HangingManager) -> list[float]:
    """Return the limits that are set from now on; while the manager hangs, they are over at once."""
    found: list[float] = []
    timeout = asyncio.timeout

    def noted(seconds: float) -> asyncio.Timeout:
        found.append(seconds)
        return timeout(seconds if manager.gate.is_set() else 0.01)

    monkeypatch.setattr(guidance_module, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(guidance_module, "LATER_SECONDS", 60.0)
    monkeypatch.setattr(asyncio, "timeout", noted)
    return found


async def guide(guidance: Guidance) -> str:
    return (await guidance.guide("q", task="t", environment="e", prompt="", read_only=False)).status


async def test_a_question_waits_while_the_actors_servers_pause(
    manager: HangingManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be what answers it (``comprl.extractor.backend=actor``)."""
    clock = pauses.PausableClock()
    monkeypatch.setattr(pauses, "_clock", clock)
    clock.pause(True)
    asked = Guidance(manager).ask("q", task="t", environment="e", read_only=False, timeout=0.5)
    asking = asyncio.create_task(asked)
    await asyncio.sleep(0.8)
    manager.gate.set()
    assert (await asking).status == "answered"


async def test_no_secret_of_the_environment_leaves_the_rollout_in_a_query(
    manager: HangingManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    guidance = Guidance(manager)
    monkeypatch.setenv("SOME_API_KEY", 'a"secret-0123')  # as by an environment, when the worker has long begun
    manager.gate.set()
    queries = ('The log shows SOME_API_KEY=a"secret-0123; what now?', "{'SOME_API_KEY': 'a\"secret-0123'}")
    for query in queries:
        await guidance.guide(query, task="t", environment="e", prompt="", read_only=False)
        await guidance.ask(query, task="t", environment="e", read_only=False, timeout=600)
    sent = [arguments[0] for arguments in manager.arguments]
    assert sent == [query.replace('a"secret-0123', "***") for query in queries for _ in range(2)]


async def test_a_manager_that_hangs_is_waited_for_once_and_then_hardly(
    manager: HangingManager, limits: list[float]
) -> None:
    guidance = Guidance(manager)
    # All rollouts of a step ask at the same time: together they are one time-out.
    first = await asyncio.gather(*(guide(guidance) for _ in range(50)))
    assert first == ["degraded"] * 50 and limits == [600.0] * 50
    limits.clear()
    episode: Any = SimpleNamespace(request=SimpleNamespace(id="a"))
    assert not await guidance.report(episode) and await guide(guidance) == "degraded"
    assert limits == [60.0] * 2

    # Reports are still sent, but not waited for.
    assert not any([await guidance.report(episode) for _ in range(20)])
    assert limits == [60.0] * 2 and manager.called.count("report") == 21

    manager.gate.set()
    assert await guide(guidance) == "found" and await guidance.report(episode)
    manager.gate.clear()
    limits.clear()
    assert await guide(guidance) == "degraded"
    assert limits[:1] == [600.0], "it has answered in between"


async def test_a_question_takes_no_longer_than_its_limit(manager: HangingManager, limits: list[float]) -> None:
    guidance = Guidance(manager)
    answer = await guidance.ask("q", task="t", environment="e", read_only=False, timeout=700)
    assert answer == Answer("degraded", UNAVAILABLE) and limits == [700]
    manager.gate.set()
    answer = await guidance.ask("q", task="t", environment="e", read_only=False, timeout=700)
    assert answer == Answer("answered", "text")
