"""Episodes that end while the manager is away reach it when it is back, without delaying a rollout."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from ray.exceptions import RayActorError, RayTaskError
from waiting import until

from verl_comprl.manager.messages import Guide, ManagerNotOpen
from verl_comprl.rollout import guidance as guidance_module
from verl_comprl.rollout import unconfirmed
from verl_comprl.rollout.guidance import Guidance
from verl_comprl.rollout.unconfirmed import MAX_REFUSALS, send_unconfirmed


class Manager:
    """Takes reports, unless ``failure`` is raised at every call, ``hanging`` is set, or it refuses an episode."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.hanging = False
        self.refused: set[str] = set()
        self.sent: list[str] = []
        self.taken: list[str] = []
        self.guide = SimpleNamespace(remote=lambda *_, **__: self._answer(Guide("found", "text")))
        self.report = SimpleNamespace(remote=lambda episode: self._answer(True, episode.request.id))

    def _answer(self, answer: Any, id: str | None = None) -> Any:
        if id is not None:
            self.sent.append(id)
        return asyncio.ensure_future(self._answer_later(answer, id))

    async def _answer_later(self, answer: Any, id: str | None) -> Any:
        if self.hanging:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        if id in self.refused:
            raise RayTaskError("report", "traceback", ValueError("no"))
        if id is not None:
            self.taken.append(id)
        return answer


@pytest.fixture(autouse=True)
def reports_of_this_test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed, "_of_this_process", WeakSet())


def episode(id: str) -> Any:
    return SimpleNamespace(request=SimpleNamespace(id=id))


async def guide(guidance: Guidance) -> str:
    return (await guidance.guide("q", task="t", environment="e", prompt="", read_only=False)).status


def waiting(guidance: Guidance) -> int:
    return len(guidance._unconfirmed)


NOT_OPEN = RayTaskError("report", "traceback", ManagerNotOpen("its bank is not open")).as_instanceof_cause()


@pytest.mark.parametrize("failure", [RayActorError(), NOT_OPEN])
async def test_episodes_that_ended_while_the_manager_was_away_are_sent_when_it_answers(failure: Exception) -> None:
    manager = Manager()
    guidance = Guidance(manager)
    manager.failure = failure
    assert not any([await guidance.report(episode(id)) for id in "abc"])
    assert await guide(guidance) == "degraded" and manager.sent == [*"abc"]
    manager.failure = None
    assert await guide(guidance) == "found"
    await until(lambda: not waiting(guidance))
    assert manager.taken == [*"abc"]
    assert await guidance.report(episode("d"))
    assert manager.taken == [*"abcd"], "what is confirmed is sent no more"


async def test_no_rollout_waits_for_reports_that_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    guidance = Guidance(manager)
    manager.failure = RayActorError()
    for id in "ab":
        await guidance.report(episode(id))
    manager.failure = None
    monkeypatch.setattr(manager, "report", SimpleNamespace(remote=lambda _: asyncio.Event().wait()))
    monkeypatch.setattr(guidance_module, "LATER_SECONDS", 600.0)
    async with asyncio.timeout(30):
        assert [await guide(guidance) for _ in range(3)] == ["found"] * 3
    assert waiting(guidance) == 2


async def test_a_manager_that_hangs_again_gets_one_report_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guidance_module, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(guidance_module, "LATER_SECONDS", 0.05)
    manager = Manager()
    guidance = Guidance(manager)
    manager.hanging = True
    for id in "abc":
        await guidance.report(episode(id))
    guidance._unconfirmed.send_again()
    await until(lambda: len(manager.sent) == 4)
    await asyncio.wait({guidance._unconfirmed._sending or pytest.fail("nothing was sent")})
    assert manager.sent == [*"abca"] and waiting(guidance) == 3
    manager.hanging = False
    for name in ("FIRST_SECONDS", "LATER_SECONDS"):
        monkeypatch.setattr(guidance_module, name, 600.0)
    assert send_unconfirmed() == (3, 0)  # what the trainer asks for at the end of a step
    await until(lambda: not waiting(guidance))
    assert sorted(manager.taken) == [*"abc"]
    assert await guidance.report(episode("d")), "the manager is waited for again, which has answered"


async def test_the_oldest_reports_are_given_up_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unconfirmed, "MOST_KEPT", 3)
    manager = Manager()
    guidance = Guidance(manager)
    manager.failure = RayActorError()
    with caplog.at_level(logging.WARNING, "verl_comprl.rollout.unconfirmed"):
        for id in "abcde":
            await guidance.report(episode(id))
    assert send_unconfirmed() == (3, 2)
    assert [record.name for record in caplog.records].count("verl_comprl.rollout.unconfirmed") == 1
    manager.failure = None
    await guide(guidance)
    await until(lambda: not waiting(guidance))
    assert manager.taken == [*"cde"]


async def test_a_report_at_which_the_manager_raises_is_given_up_and_holds_up_no_other() -> None:
    manager = Manager()
    guidance = Guidance(manager)
    manager.failure = RayActorError()
    for id in "abc":
        await guidance.report(episode(id))
    manager.failure, manager.refused = None, {"a"}
    for number in range(MAX_REFUSALS):
        assert waiting(guidance) == (1 if number else 3)
        await guide(guidance)
        await asyncio.wait({guidance._unconfirmed._sending or pytest.fail("nothing was sent")})
    assert (waiting(guidance), guidance._unconfirmed.dropped, manager.taken) == (0, 1, [*"bc"])
