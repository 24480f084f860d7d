"""Updates of the extractor in the background, and those that fail."""

import math
import threading
import time
from typing import Any

import pytest
from learning import Start, until, values

from verl_comprl.errors import UpdateMade, WaitTimeout
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.trainer.extractor import learner as module


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
