"""The thread that trains the extractor: what lets it begin an update, and what keeps it from one."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from learning import Start, until

from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.trainer.extractor import learner as module


def test_a_checkpoint_comes_before_the_next_update(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches wait all the time, and locks are not given in turn."""
    learner, extractor, _ = start(0, thread=False)
    begun, goes_on = threading.Event(), threading.Event()

    def update(batch: TrainingBatch) -> dict[str, float]:
        begun.set()
        goes_on.wait(10)
        time.sleep(0.01)
        extractor.weight_version += 1
        return {"grad_norm": 1.0}

    monkeypatch.setattr(extractor, "update", update)
    monkeypatch.setattr(module, "update_metrics", lambda batch, version: {})
    learner._manager = SimpleNamespace(
        next_batch=SimpleNamespace(remote=lambda version: "batch"), trained=SimpleNamespace(remote=lambda: None)
    )
    learner.start()
    assert begun.wait(10)
    learner.hold_updates()
    goes_on.set()
    with extractor.lock:
        assert extractor.weight_version == 1
        time.sleep(0.1)
        assert extractor.weight_version == 1
    learner.resume_updates()
    until(lambda: extractor.weight_version > 1)


def test_the_samples_of_a_step_are_asked_for_at_once(
    start: Start, make_record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
    learner, extractor, buffer = start(0, thread=False)
    given = list[Any]()

    def next_batch(version: int) -> Any:
        given.append(buffer.next_batch(1, version))
        return given[-1]

    learner._manager.next_batch = SimpleNamespace(remote=next_batch)
    learner.start()
    until(lambda: given and given[-1] is None)
    for id in ("c", "d"):
        buffer.add(make_record(id))
        buffer.record_reward(id, 1.0)
    buffer.collect()
    learner.note_samples()
    until(lambda: len(extractor.trained_on) == 2)
    assert learner.stop(20.0), "it does not wait for the next question"


def test_a_learner_that_is_held_back_begins_no_update(start: Start) -> None:
    learner, extractor, buffer = start(0, thread=False)
    learner.hold_updates()
    learner.start()
    time.sleep(0.2)
    assert extractor.trained_on == [] and len(buffer) == 2
    learner.resume_updates()
    until(lambda: not len(buffer))
    assert [sorted(ids) for ids in extractor.trained_on] == [["a", "b"]]


def test_a_run_can_end_while_its_learner_is_held_back(start: Start) -> None:
    learner, extractor, _ = start(0, thread=False)
    learner.hold_updates()
    learner.start()
    learner.stop(10.0)
    assert not learner._thread.is_alive() and extractor.trained_on == []


class Lock:
    """The extractor's lock; what is called when it is taken happened while it was waited for."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile = meanwhile

    def __enter__(self) -> None:
        self.meanwhile()

    def __exit__(self, *_: Any) -> None:
        """Nobody else takes it."""


def elsewhere(call: Callable[[], Any]) -> None:
    """Call in another thread, as the trainer does."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


WAITS = pytest.mark.parametrize("waits_for", ["late work", "lock", "restore", "batch", "pause"])


def while_it_waits(waits_for: str, extractor: Any, learner: Any, meanwhile: Callable[[], None]) -> threading.Event:
    """Let something happen while a learner waits; returns what is set if it goes on to what takes longer."""
    went_on = threading.Event()
    next_batch = learner._manager.next_batch.remote
    if waits_for in ("late work", "lock"):
        extractor.restore = went_on.set
    if waits_for == "late work":
        extractor.wait_for_late_work = meanwhile
    elif waits_for == "lock":
        extractor.lock = Lock(meanwhile)
    elif waits_for == "restore":
        extractor.restore = meanwhile
    elif waits_for == "batch":
        learner._manager.next_batch.remote = lambda version: meanwhile() or next_batch(version)
    else:
        extractor.pause = meanwhile
    return went_on


@pytest.mark.parametrize("end", ["held back", "ended", "run stopped"])
@WAITS
def test_no_update_begins_if_that_was_forbidden_while_it_waited(start: Start, waits_for: str, end: str) -> None:
    """For late work and servers it waits minutes; a checkpoint would wait for all of the update."""
    learner: Any
    learner, extractor, buffer = start(0, thread=False)
    is_run_stopped, given = threading.Event(), list[float | None]()
    ends = {
        "held back": learner.hold_updates,
        "ended": lambda: learner.stop(0.0),
        "run stopped": is_run_stopped.set,
    }
    attempt = learner._attempt
    learner._attempt = lambda may_begin: given.append(attempt(may_begin)) or given[-1]
    went_on = while_it_waits(waits_for, extractor, learner, lambda: elsewhere(ends[end]))
    learner.start(is_run_stopped.is_set)
    until(lambda: given)
    assert (given[0], extractor.trained_on, len(buffer), extractor.copied) == (None, [], 2, 0)
    assert not went_on.is_set()


@WAITS
def test_no_update_begins_in_a_turn_of_a_run_that_was_stopped_while_it_waited(start: Start, waits_for: str) -> None:
    learner, extractor, buffer = start(0, thread=False)
    is_run_stopped = threading.Event()
    went_on = while_it_waits(waits_for, extractor, learner, is_run_stopped.set)
    learner.take_turn(30.0, is_run_stopped.is_set)
    assert (extractor.trained_on, len(buffer), extractor.copied) == ([], 2, 0)
    assert is_run_stopped.is_set() and not went_on.is_set()


def test_servers_are_not_restored_for_a_run_that_was_stopped_meanwhile(start: Start) -> None:
    """A learner that has given up tries to; the stop's checkpoint would wait for the lock."""
    learner, extractor, _ = start(1, place="sync", max_failures=1, thread=False)
    learner.take_turn(10)
    assert learner.given_up and extractor.is_down
    assert learner._attempt(lambda: False) is None and extractor.is_down
    assert learner._attempt(lambda: True) == 0.0 and not extractor.is_down


def test_after_a_stop_of_the_run_no_update_begins(start: Start) -> None:
    learner, extractor, buffer = start(0, thread=False)
    learner.start(lambda: True)
    time.sleep(0.2)
    assert extractor.trained_on == [] and len(buffer) == 2
    assert learner.stop(20.0)


def test_an_end_that_comes_immediately_before_the_wait_for_samples_ends_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
    learner, *_ = start(0, thread=False)
    began = time.monotonic()
    # Asked last, before what is not to be missed.
    learner.start(lambda: elsewhere(lambda: learner.stop(0.0)) is not None)
    learner._thread.join(20)
    assert not learner._thread.is_alive() and time.monotonic() - began < 20


def test_samples_that_come_while_the_manager_has_none_are_asked_for_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
    learner, extractor, _ = start(0, thread=False)
    next_batch, asked = learner._manager.next_batch.remote, list[int]()

    def none_at_first(version: int) -> Any:
        asked.append(version)
        if len(asked) > 1:
            return next_batch(version)
        learner.note_samples()
        return None

    learner._manager.next_batch.remote = none_at_first
    learner.start()
    until(lambda: extractor.trained_on)
