"""A manager that has not heard that the extractor goes away or is back is told again: handle and waits are fakes."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from verl_comprl.errors import WaitTimeout
from verl_comprl.manager.actor import _ManagerActor
from verl_comprl.manager.availability import ExtractorAvailability
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.trainer import experience_runtime, manager_guard
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.manager_guard import ManagerGuard
from verl_comprl.trainer.servers.serving import Serving

FAILURES = [
    WaitTimeout("to note", 30.0),
    ActorUnavailableError("a connection has broken", None),
    ActorDiedError(),
    ManagerNotOpen("not open"),
]


class Manager:
    """Notes what reaches it, unless ``failure`` keeps that from it."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.attempts = 0
        self.heard: list[str] = []
        self.numbers: list[int] = []
        self.is_connected = SimpleNamespace(remote=lambda: True)
        self.away = SimpleNamespace(remote=lambda number: self._hear("away", number))
        self.back = SimpleNamespace(remote=lambda number: self._hear("back", number))

    def _hear(self, what: str, number: int) -> Exception | None:
        self.attempts += 1
        if self.failure is None:
            self.heard.append(what)
            self.numbers.append(number)
        return self.failure


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def wait_for(result: Any, seconds: float, what: str) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    for module in (experience_runtime, manager_guard):
        monkeypatch.setattr(module, "wait_for", wait_for)
    monkeypatch.setattr(manager_guard, "LOOK_SECONDS", 0.01)
    names = ("abort_replicas", "sleep_replicas", "update_weights", "resume_generation_replicas")
    control: Any = SimpleNamespace(replicas=[], backend="naive", **dict.fromkeys(names, lambda *_: None))
    runtime: Any = object.__new__(ExperienceRuntime)
    runtime.manager, runtime._told, runtime._is_told = Manager(), 0, True
    runtime.extractor = object.__new__(ExtractorRuntime)
    runtime.extractor.serving = Serving(control, shares_memory=True)
    runtime.extractor.serving.publish(0, 5)
    runtime.extractor.serving.tell = runtime._tell_manager
    runtime._guard = ManagerGuard(runtime.manager, lambda: None, then=runtime._repeat_unless_told)
    runtime._guard.start()
    yield runtime
    runtime._guard.stop(20)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("lost", ["away", "back"])
def test_it_is_told_again_until_it_has_confirmed_and_then_no_more(runtime: Any, lost: str, failure: Exception) -> None:
    """The process goes on after the first two, so that no new beginning would put right what it believes."""
    manager, serving = runtime.manager, runtime.extractor.serving
    if lost == "back":
        serving.pause()
        assert manager.heard.pop() == "away"
    manager.failure = failure
    serving.pause() if lost == "away" else serving.publish(1, 5)
    until(lambda: manager.attempts > 4)
    manager.failure = None
    until(lambda: manager.heard)
    attempts = manager.attempts
    time.sleep(0.1)
    assert manager.heard == [lost] and manager.attempts == attempts


def test_only_the_latest_state_is_told(runtime: Any) -> None:
    manager, serving = runtime.manager, runtime.extractor.serving
    manager.failure = WaitTimeout("to note", 30.0)
    serving.pause()
    serving.publish(1, 5)
    until(lambda: manager.attempts > 4)
    manager.failure = None
    until(lambda: manager.heard)
    serving.pause()
    serving.publish(2, 5)
    time.sleep(0.1)
    assert manager.heard == ["back", "away", "back"] and manager.numbers == sorted(set(manager.numbers))


def test_a_change_waits_for_what_is_being_repeated_and_is_told_after_it(runtime: Any) -> None:
    manager, serving = runtime.manager, runtime.extractor.serving
    repeating, goes_on = threading.Event(), threading.Event()
    manager.failure, tell = WaitTimeout("to note", 30.0), serving.tell

    def tell_slowly(there: bool) -> None:
        if manager.attempts:  # the guard's thread does, once more
            repeating.set()
            goes_on.wait(20)
            manager.failure = None
        tell(there)

    serving.tell = tell_slowly
    serving.pause()
    assert repeating.wait(20)
    publishing = threading.Thread(target=lambda: serving.publish(1, 20))
    publishing.start()
    publishing.join(0.2)
    goes_on.set()
    publishing.join(20)
    assert manager.heard == ["away", "back"]


@pytest.mark.parametrize("order", [[1, 2], [2, 1], [2, 1, 2]])
async def test_a_message_that_comes_after_a_later_one_changes_nothing(order: list[int]) -> None:
    """One that had timed out, say, in a manager that hung."""
    manager = _ManagerActor()
    manager.availability = ExtractorAvailability()
    calls = {1: manager.away, 2: manager.back}
    for number in order:
        await calls[number](number)
    assert manager.availability.metrics()["extractor/away"] == 0
    await manager.away(3)
    await manager.back(2)
    assert manager.availability.metrics()["extractor/away"] == 1
