"""A manager is made to begin again only in a new process; handle and waits are fakes, unlike in test_killed_manager."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import EmbedderUnavailable, StoreError, StoreUnavailable
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.trainer import manager_guard as module
from verl_comprl.trainer.manager_guard import MAX_FAILURES, ManagerGuard, ManagerLost


class Manager:
    """Answers ``is_connected`` with the next of ``states``, the last one for ever: a truth value, or what it raises."""

    def __init__(self, *states: bool | Exception) -> None:
        self.states = list(states)
        self.is_connected = SimpleNamespace(remote=self._next)

    def _next(self) -> bool | Exception:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(result: Any, seconds: float, what: str) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(module, "wait_for", wait_for)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(module, "RESTART_SECONDS", 30.0)


def died() -> ActorDiedError:
    return ActorDiedError()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("states", "restarts"),
    [
        ((True,), 0),
        ((WaitTimeout("it", 1.0),), 0),  # a hang is not a death
        ((False,), 1),
        ((ActorUnavailableError("restarting", None), died(), False), 1),
    ],
)
def test_it_begins_again_only_in_a_new_process(states: tuple, restarts: int) -> None:
    begun: list[None] = []
    guard = ManagerGuard(Manager(*states), lambda: begun.append(None))
    guard.check(1.0)
    assert guard.restarts == len(begun) == restarts


def test_a_manager_that_ray_does_not_start_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.5)
    with pytest.raises(ActorDiedError):
        ManagerGuard(Manager(died()), lambda: None).check(1.0)


@pytest.mark.parametrize("failure", [died(), ManagerNotOpen("not open")])
def test_a_call_that_met_a_dead_manager_is_made_again(failure: Exception) -> None:
    results: list[Any] = [failure, "answer"]
    manager = Manager(False)
    guard = ManagerGuard(manager, lambda: manager.states.__setitem__(0, True))
    assert guard.ask(lambda: results.pop(0), 1.0, "it") == "answer"
    assert guard.restarts == 1


@pytest.mark.parametrize("failure", [died(), StoreError("away"), ManagerNotOpen("not open")])
def test_a_manager_that_fails_to_begin_again_is_given_another_attempt_whoever_looks(failure: Exception) -> None:
    """Here a call does, before the guard's thread; the embedder that is loaded may be what runs out of memory."""
    manager, failures = Manager(False), [failure] * (MAX_FAILURES - 1)

    def begin_again() -> None:
        if failures:
            raise failures.pop()
        manager.states[0] = True

    guard = ManagerGuard(manager, begin_again)
    assert guard.ask(lambda: "answer" if manager.states == [True] else died(), 1.0, "it") == "answer"
    assert guard.restarts == 1 and not failures


def test_a_manager_that_fails_to_begin_again_for_every_call_ends_the_run() -> None:
    attempts: list[None] = []

    def fail() -> None:
        attempts.append(None)
        raise StoreError("away")

    guard = ManagerGuard(Manager(False), fail)
    with pytest.raises(ManagerLost, match="could not be restarted: away"):
        guard.ask(died, 1.0, "it")
    assert len(attempts) == MAX_FAILURES


AWAY = [
    StoreUnavailable("experience bank c on http://store: no route"),
    EmbedderUnavailable("embedding endpoint 'http://embedder/v1': no route"),
    # As it comes from another process, where its text is a whole traceback.
    RayTaskError("open", "Traceback", StoreUnavailable("experience bank c on http://store: no route")),
]


@pytest.mark.parametrize("error", AWAY)
def test_a_store_or_an_embedder_that_is_away_is_no_failure_of_the_manager(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error.as_instanceof_cause() if isinstance(error, RayTaskError) else error
    attempts, manager, is_back = [], Manager(False), threading.Event()

    def begin_again() -> None:
        attempts.append(None)
        if not is_back.is_set():
            raise error
        manager.states[0] = True

    guard = ManagerGuard(manager, begin_again, outage_seconds=3600.0)
    guard.start()
    until(lambda: len(attempts) > 2 * MAX_FAILURES)
    with pytest.raises((StoreUnavailable, EmbedderUnavailable), match=r"^[^\n]*no route$"):
        guard.ask(died, 5.0, "it")
    is_back.set()
    until(lambda: guard.restarts)
    guard.stop(10.0)
    assert guard.ask(lambda: "answer", 1.0, "it") == "answer" and guard.restarts == 1
    said = capsys.readouterr().out
    assert said.count("cannot begin again, it is tried again, for 3600 s, and rollouts go on without experience: ") == 1
    assert said.count("no route") == 1 and "could not be restarted" not in said


def test_a_call_makes_no_attempt_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step would wait for each of its calls otherwise; the thread makes the attempts."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 20.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 20.0)
    attempts: list[None] = []

    def fail() -> None:
        attempts.append(None)
        raise StoreUnavailable("away")

    guard = ManagerGuard(Manager(False), fail)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="away"):
            guard.ask(died, 60.0, "it")
    assert len(attempts) == 1


def test_an_outage_that_lasts_too_long_ends_the_run_with_the_name_of_the_store() -> None:
    attempts: list[None] = []

    def fail() -> None:
        attempts.append(None)
        raise StoreUnavailable("experience bank c on http://store: no route")

    guard = ManagerGuard(Manager(False), fail, outage_seconds=3.0)
    guard.start()
    until(lambda: not guard._thread.is_alive())
    with pytest.raises(ManagerLost, match="could not be restarted: experience bank c on http://store: no route"):
        guard.ask(lambda: "answer", 1.0, "it")
    assert len(attempts) > MAX_FAILURES


def test_a_call_that_kills_the_manager_again_is_not_made_for_ever() -> None:
    guard, calls = ManagerGuard(Manager(False), lambda: None), []
    with pytest.raises(ActorDiedError):
        guard.ask(lambda: calls.append(None) or died(), 1.0, "it")
    assert guard.restarts == MAX_FAILURES and len(calls) == MAX_FAILURES + 1


def test_attempts_of_the_thread_and_of_calls_have_pauses_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away for some seconds would use up all of them otherwise."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    times: list[float] = []

    def fail() -> None:
        times.append(time.monotonic())
        raise StoreError("away")

    guard = ManagerGuard(Manager(False), fail)
    guard.start()
    with pytest.raises(ManagerLost):
        guard.ask(died, 5.0, "it")
    guard.stop(5.0)
    assert times[1] - times[0] >= 0.2 and times[2] - times[1] >= 0.4


def test_a_call_waits_only_so_long_for_a_manager_that_begins_again() -> None:
    """The actor's step makes such calls; the guard's thread may take some of ``comprl.work_timeout``."""
    begun, end = threading.Event(), threading.Event()

    def begin_again() -> None:
        begun.set()
        end.wait(40)

    guard = ManagerGuard(Manager(False), begin_again)
    guard.start()
    assert begun.wait(10)
    started = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for the experience manager to begin again"):
        guard.ask(died, 0.1, "it")
    guard.stop(0.1)
    assert time.monotonic() - started < 20
    end.set()


@pytest.mark.parametrize("failure", [ValueError("its own"), WaitTimeout("it", 1.0)])
def test_other_failures_of_a_call_are_raised_as_they_are(failure: Exception) -> None:
    guard = ManagerGuard(Manager(False), lambda: None)
    with pytest.raises(type(failure)):
        guard.ask(lambda: failure, 1.0, "it")
    assert guard.restarts == 0


def test_the_thread_lets_it_begin_again_without_being_asked() -> None:
    manager = Manager(True, True, False, True)
    guard = ManagerGuard(manager, lambda: None)
    guard.start()
    until(lambda: guard.restarts)
    guard.stop(10.0)
    assert guard.restarts == 1


@pytest.mark.parametrize("error", [RuntimeError("the bank"), WaitTimeout("the bank", 5.0)])
def test_after_failures_in_a_row_the_next_call_says_why(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """A time-out, too, is no longer one: those cost a step."""

    def fail() -> None:
        raise error

    guard = ManagerGuard(Manager(False), fail)
    guard.start()
    until(lambda: not guard._thread.is_alive())
    with pytest.raises(ManagerLost, match=r"could not be restarted: .*the bank"):
        guard.ask(lambda: "answer", 1.0, "it")
    assert capsys.readouterr().out.count("could not be restarted") == MAX_FAILURES and guard.restarts == 0
