"""Updates of the extractor that fail: a real training buffer, and engine and servers that can be told to fail."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.errors import UpdateMade, WaitTimeout
from verl_comprl.extractor.buffer import TrainingBatch, TrainingBuffer
from verl_comprl.trainer.extractor import learner as module
from verl_comprl.trainer.extractor.learner import ExtractorLearner


class Extractor:
    """Engine and servers; ``failures`` are raised one after the other, at the given place."""

    def __init__(self, failures: list[Exception], place: str) -> None:
        self.failures: list[Any] = failures
        self.place = place
        self.weight_version = 0
        self.lock = threading.RLock()
        self.trained_on: list[list[str]] = []
        self.entered = threading.Event()
        self.late: list[str] = []
        self.grad_norm = 1.0
        self.is_down, self.lost_servers, self.work_is_late = False, 0, False
        self.hurries: Callable[[], bool] = lambda: False

    def _fail(self, place: str) -> None:
        if place == self.place and self.failures:
            self.entered.set()
            raise self.failures.pop(0)

    def wait_for_late_work(self) -> None:
        self._fail("wait")
        if self.late:
            self.trained_on.append(self.late)
            self.late, self.weight_version = [], self.weight_version + 1

    def restore(self) -> None:
        self._fail("restore")
        self.is_down = False

    @contextmanager
    def changing_weights(self) -> Iterator[None]:
        yield
        self.is_down = self.place == "sync" and bool(self.failures)
        self._fail("sync")

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        records = [record.id for record in batch.records]
        if self.place == "late" and self.failures:
            self.late = records  # it takes its step when nobody waits for it any more
            self._fail("late")
        self._fail("update")
        self.weight_version += 1
        self.trained_on.append(records)
        return {"loss": 1.0, "grad_norm": self.grad_norm}


Start = Callable[..., tuple[ExtractorLearner, Extractor, TrainingBuffer]]


@pytest.fixture
def start(make_record: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a learner whose buffer holds one batch: the records a and b."""
    monkeypatch.setattr(module, "wait_for", lambda result, seconds, what: result)
    monkeypatch.setattr(module, "FIRST_BACKOFF", 0.02)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    started: list[ExtractorLearner] = []

    def start(
        failures: int, *, place: str = "update", max_failures: int = 5, thread: bool = True
    ) -> tuple[ExtractorLearner, Extractor, TrainingBuffer]:
        buffer = TrainingBuffer(2, alpha=0.5, cooldown=1)
        for id, reward in (("a", 1.0), ("b", -1.0)):
            buffer.add(make_record(id))
            buffer.record_reward(id, reward)
        buffer.collect()
        manager = SimpleNamespace(
            next_batch=SimpleNamespace(remote=lambda version: buffer.next_batch(1, version)),
            trained=SimpleNamespace(remote=buffer.trained),
        )
        extractor: Any = Extractor([RuntimeError(f"no memory {n}") for n in range(failures)], place)
        learner = ExtractorLearner(extractor, manager, max_failures=max_failures)
        started.append(learner)
        if thread:
            learner.start()
        return learner, extractor, buffer

    yield start
    for learner in started:
        learner.stop(10.0)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """A second before each further attempt: on a busy machine an attempt may take longer than the usual pause here."""
    monkeypatch.setattr(module, "FIRST_BACKOFF", 1.0)
    monkeypatch.setattr(module, "LONGEST_BACKOFF", 1.0)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def values(learner: ExtractorLearner) -> tuple[float, ...]:
    metrics = learner.metrics()
    return tuple(metrics[f"comprl/extractor/{name}"] for name in ("updates", "failed", "given_up"))


@pytest.mark.parametrize(("grad_norm", "skipped"), [(0.5, 0.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_an_update_whose_gradient_is_not_finite_is_counted(start: Start, grad_norm: float, skipped: float) -> None:
    learner, extractor, _ = start(0, thread=False)
    extractor.grad_norm = grad_norm
    learner.take_turn(10)
    assert extractor.trained_on == [["a", "b"]]
    assert learner.metrics()["comprl/extractor/skipped"] == skipped


@pytest.mark.parametrize("place", ["update", "restore"])
def test_an_update_that_fails_is_tried_again_with_the_same_samples(start: Start, place: str) -> None:
    learner, extractor, buffer = start(3, place=place)
    until(lambda: not len(buffer))
    until(lambda: values(learner) == (1, 3, 0))
    assert [sorted(ids) for ids in extractor.trained_on] == [["a", "b"]]
    metrics = learner.metrics()
    assert metrics["comprl/extractor/loss"] == 1.0
    # Its two samples are distillations with different outcomes.
    assert (metrics["comprl/extractor/informative"], metrics["comprl/extractor/share/distill"]) == (1.0, 1.0)


def test_a_batch_whose_weights_did_not_reach_the_servers_is_not_trained_on_twice(start: Start) -> None:
    learner, extractor, buffer = start(1, place="sync")
    until(lambda: values(learner)[1] == 1)
    time.sleep(0.1)
    assert len(extractor.trained_on) == 1 and len(buffer) == 0 and values(learner) == (1, 1, 0)


def test_a_stop_ends_a_turn_before_its_next_update(start: Start, make_record: Any) -> None:
    learner, extractor, buffer = start(0, thread=False)
    for id in ("c", "d"):
        buffer.add(make_record(id))
        buffer.record_reward(id, 1.0)
    buffer.collect()
    learner.take_turn(30.0, lambda: bool(extractor.trained_on))
    assert [sorted(batch) for batch in extractor.trained_on] == [["a", "b"]] and len(buffer) == 2
    learner.take_turn(30.0)
    assert len(extractor.trained_on) == 2


@pytest.mark.parametrize("max_failures", [0, 1])
def test_an_update_that_a_stop_has_left_behind_is_no_failure(start: Start, max_failures: int) -> None:
    learner, extractor, buffer = start(0, place="late", max_failures=max_failures, thread=False)
    extractor.failures.append(WaitTimeout("the extractor's workers to update", 1))
    learner.take_turn(30.0, lambda: extractor.late != [])
    assert (values(learner), len(buffer)) == ((0, 0, 0), 0)


@pytest.mark.parametrize(
    "failure", [WaitTimeout("the extractor's workers to update", 1), UpdateMade("the weights were updated before this")]
)
def test_a_batch_whose_update_comes_to_its_end_too_late_or_fails_after_it_was_made_is_not_trained_on_twice(
    start: Start, make_record: Any, unhurried: None, failure: Exception
) -> None:
    learner, extractor, buffer = start(0, place="late", thread=False)
    extractor.failures.append(failure)
    learner.take_turn(30.0)
    assert (values(learner), len(buffer), extractor.trained_on) == ((0, 1, 0), 0, []), "its outcome is not known"
    # The next attempt finds the engine at work: nothing of a new batch may begin.
    for id in ("c", "d"):
        buffer.add(make_record(id))
        buffer.record_reward(id, 1.0)
    buffer.collect()
    extractor.place, extractor.failures = "wait", [WaitTimeout("the extractor's workers to update", 1)]
    time.sleep(1.05)
    learner.take_turn(30.0)
    assert (values(learner), len(buffer), extractor.trained_on) == ((0, 2, 0), 2, [])
    time.sleep(1.05)
    learner.take_turn(30.0)
    assert [sorted(ids) for ids in extractor.trained_on] == [["a", "b"], ["c", "d"]]
    assert (values(learner), len(buffer)) == ((2, 2, 0), 0)


@pytest.mark.parametrize(
    ("late_with", "updates"),
    [("a batch from the experience manager", 0), ("the experience manager to count a batch as trained", 1)],
)
def test_a_manager_that_does_not_answer_in_time_is_no_failure_of_an_update(
    start: Start, monkeypatch: pytest.MonkeyPatch, late_with: str, updates: int
) -> None:
    late = True

    def wait_for(result: Any, seconds: float, what: str) -> Any:
        if late and what == late_with:
            raise WaitTimeout(what, seconds)
        return result

    monkeypatch.setattr(module, "wait_for", wait_for)
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.0)
    learner, extractor, _ = start(0, max_failures=2, thread=False)
    for _ in range(5):
        learner.take_turn(0.01)
    assert values(learner) == (updates, 0, 0)
    late = False
    learner.take_turn(30.0)
    assert [sorted(batch) for batch in extractor.trained_on] == [["a", "b"]] and values(learner) == (1, 0, 0)


def test_learning_stops_after_failures_in_a_row_and_says_so_once(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    learner, extractor, buffer = start(99, max_failures=3)
    learner._thread.join(10)
    assert values(learner) == (0, 3, 1) and len(extractor.failures) == 96
    assert len(buffer) == 2, "the samples are where they were"
    printed = capsys.readouterr().out
    assert printed.count("the next attempt is in 0.02 s: RuntimeError: no memory 0") == 1
    assert printed.count("the next attempt is in 0.04 s: RuntimeError: no memory 1") == 1
    assert printed.count("not trained any more: 3 updates in a row failed") == 1
    assert printed.count("Traceback (most recent call last)") == 1


def test_servers_that_were_down_when_learning_stopped_are_restored_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_BACKOFF", 0.01)
    learner, extractor, _ = start(1, place="sync", max_failures=1)
    until(lambda: values(learner) == (1, 1, 1))
    learner._thread.join(10)
    assert not learner._thread.is_alive() and not extractor.is_down and len(extractor.trained_on) == 1


def test_servers_that_cannot_be_restored_do_not_keep_a_run_from_its_end(start: Start) -> None:
    learner, extractor, _ = start(1, place="sync", max_failures=1)
    extractor.failures += [RuntimeError("dead")] * 99
    until(lambda: values(learner) == (1, 1, 1))
    extractor.place = "restore"
    started = time.monotonic()
    learner.stop(40.0)
    assert extractor.is_down and time.monotonic() - started < 20 and values(learner) == (1, 1, 1)


def test_a_turn_restores_them_too(start: Start, unhurried: None) -> None:
    learner, extractor, _ = start(1, place="sync", max_failures=1, thread=False)
    learner.take_turn(30.0)
    assert extractor.is_down
    time.sleep(1.05)
    learner.take_turn(30.0)
    assert not extractor.is_down and values(learner) == (1, 1, 1)


def test_an_update_in_between_makes_the_row_begin_again(start: Start, make_record: Any) -> None:
    learner, extractor, buffer = start(2, max_failures=3)
    until(lambda: values(learner) == (1, 2, 0))
    extractor.failures += [RuntimeError()] * 2
    for id in ("c", "d"):
        buffer.add(make_record(id))
        buffer.record_reward(id, 1.0)
    buffer.collect()
    until(lambda: values(learner) == (2, 4, 0))


def test_without_patience_the_first_failure_ends_the_run_at_its_next_step(start: Start) -> None:
    learner, *_ = start(1, max_failures=0)
    learner._thread.join(10)
    with pytest.raises(RuntimeError, match="an update of the extractor failed: no memory 0"):
        learner.metrics()


def test_nothing_waits_while_the_learner_waits_for_its_next_attempt(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_BACKOFF", 60.0)
    learner, extractor, _ = start(1)
    assert extractor.entered.wait(10)
    started = time.monotonic()
    assert extractor.lock.acquire(timeout=20), "a checkpoint could not be written"
    extractor.lock.release()
    assert values(learner)[2] == 0
    learner.stop(40.0)
    assert time.monotonic() - started < 20


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


def test_an_update_that_hangs_does_not_keep_a_run_from_its_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, extractor, _ = start(0, thread=False)
    begun, end = threading.Event(), threading.Event()

    def update(batch: TrainingBatch) -> dict[str, float]:
        begun.set()
        end.wait(40)
        raise RuntimeError

    monkeypatch.setattr(extractor, "update", update)
    learner.start()
    assert begun.wait(10)
    started = time.monotonic()
    learner.stop(0.1)
    assert time.monotonic() - started < 20
    end.set()


def test_a_turn_takes_the_batches_that_wait_and_nothing_when_its_time_is_over(start: Start) -> None:
    learner, extractor, _ = start(0, thread=False)
    learner.take_turn(0.0)
    assert extractor.trained_on == []
    learner.take_turn(30.0)
    assert [sorted(batch) for batch in extractor.trained_on] == [["a", "b"]]
    learner.take_turn(30.0)
    assert len(extractor.trained_on) == 1
    assert learner.metrics()["comprl/extractor/updates"] == 1.0


def test_a_turn_that_fails_costs_no_time_and_is_made_up_for_later(start: Start, unhurried: None) -> None:
    learner, extractor, _ = start(1, thread=False)
    began = time.monotonic()
    learner.take_turn(30.0)
    assert time.monotonic() - began < 20 and extractor.trained_on == []
    assert learner.metrics()["comprl/extractor/failed"] == 1.0
    deadline = time.monotonic() + 30
    while not extractor.trained_on and time.monotonic() < deadline:
        learner.take_turn(30.0)
        time.sleep(0.01)
    assert [sorted(batch) for batch in extractor.trained_on] == [["a", "b"]]


def test_no_turn_is_taken_after_too_many_failures(start: Start) -> None:
    learner, extractor, _ = start(2, max_failures=2, thread=False)
    for _ in range(20):
        learner.take_turn(30.0)
        time.sleep(0.02)
    assert learner.metrics()["comprl/extractor/given_up"] == 1.0
    assert extractor.trained_on == [] and len(extractor.failures) == 0


def test_a_turn_that_fails_ends_the_run_where_no_update_may_fail(start: Start) -> None:
    learner, extractor, _ = start(1, max_failures=0, thread=False)
    with pytest.raises(RuntimeError, match="an update of the extractor failed: no memory 0"):
        learner.take_turn(30.0)
    assert extractor.trained_on == []
