"""Updates of an extractor that shares its slots with the actor: in turns, while the actor pauses."""

import time
from typing import Any

import pytest
from learning import Start, values


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


def test_a_turn_restores_them_too(start: Start, unhurried: None) -> None:
    learner, extractor, _ = start(1, place="sync", max_failures=1, thread=False)
    learner.take_turn(30.0)
    assert extractor.is_down
    time.sleep(1.05)
    learner.take_turn(30.0)
    assert not extractor.is_down and values(learner) == (1, 1, 1)
