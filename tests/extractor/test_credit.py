"""Rewards for outcomes: immediate, or relative to the free half of the prompt."""

import json
from typing import Any

import pytest

from verl_comprl.extractor.buffer import TrainingBuffer
from verl_comprl.extractor.credit import Credit, Settling
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord


@pytest.fixture
def buffer() -> TrainingBuffer:
    buffer = TrainingBuffer(1, alpha=0.0, cooldown=0)
    for id in ("a", "b"):
        buffer.add(
            GenerationRecord(
                id=id,
                kind=CallKind.DISTILL,
                prompt_ids=(1,),
                response_ids=(2,),
                response_log_probs=(-1.0,),
                weight_version=0,
            )
        )
    return buffer


def rewards(buffer: TrainingBuffer) -> dict[str, float]:
    buffer.collect()
    found: dict[str, float] = {}
    while batch := buffer.next_batch(1):
        found[batch.records[0].id] = batch.rewards[0]
        buffer.trained()
    return found


def test_an_outcome_rewards_immediately_and_a_verdict_adds_to_it(buffer: TrainingBuffer) -> None:
    credit = Credit(buffer, relative=False)
    credit.record_outcome("a", "p", "t", True, 1)
    credit.record_outcome("b", "p", "t", False, 1, judged=0.5)  # Eq. 8: refined, then failed
    assert rewards(buffer) == {"a": 1.0, "b": -0.5}


def test_relative_rewards_wait_for_the_free_half_of_their_prompt(buffer: TrainingBuffer) -> None:
    credit = Credit(buffer, relative=True)
    credit.record_outcome("a", "p", "t", True, 1)
    credit.record_outcome("b", "q", "t", True, 1, judged=1.0)
    for success in (True, False, False, False):
        credit.record_free_outcome("p", success, 1)
    credit.flush_pending(1, {})
    assert rewards(buffer) == {"a": 1.5}  # 1 − (1 − 3)/4; q has no free half yet
    assert len(credit) == 1
    credit.record_free_outcome("q", True, 2)
    credit.flush_pending(2, {})
    assert rewards(buffer) == {"b": 1.0}  # 1 + (1 − 1)
    assert len(credit) == 0


@pytest.mark.parametrize(("outcomes", "reward"), [({"t": [False, False]}, 2.0), ({}, 1.0)])
def test_a_prompt_without_a_free_half_is_compared_with_its_task(
    buffer: TrainingBuffer, outcomes: dict[str, list[bool]], reward: float
) -> None:
    credit = Credit(buffer, relative=True)
    credit.record_outcome("a", "p", "t", True, 1)
    credit.flush_pending(2, outcomes)
    assert rewards(buffer) == {}
    credit.flush_pending(3, outcomes)
    assert rewards(buffer) == {"a": reward}


def test_free_outcomes_are_dropped_after_some_steps(buffer: TrainingBuffer) -> None:
    credit = Credit(buffer, relative=True)
    credit.record_free_outcome("p", True, 1)
    credit.flush_pending(2, {})
    assert credit.state()["free"] == {"p": [True]}
    credit.flush_pending(3, {})
    assert credit.state()["free"] == {}


def test_waiting_uses_survive_a_checkpoint(buffer: TrainingBuffer) -> None:
    credit, restored = Credit(buffer, relative=True), Credit(buffer, relative=True)
    credit.record_outcome("a", "p", "t", False, 1)
    credit.record_free_outcome("q", True, 1)
    state: dict[str, Any] = json.loads(json.dumps(credit.state()))
    restored.restore(state)
    restored.record_free_outcome("p", True, 1)
    restored.flush_pending(1, {})
    assert rewards(buffer) == {"a": -2.0}
    assert restored.state()["free"] == {"q": [True], "p": [True]}


def test_a_use_waits_for_the_whole_free_half(buffer: TrainingBuffer) -> None:
    """With an asynchronous trainer, rollouts of one prompt end in different steps."""
    credit = Credit(buffer, relative=True, settling=Settling(rollouts=3, steps=8))
    credit.record_outcome("a", "p", "t", True, 1)
    for step, success in ((1, False), (4, True)):
        credit.record_free_outcome("p", success, step)
        credit.flush_pending(step, {"t": [True]})
        assert len(credit) == 1
    credit.record_free_outcome("p", False, 6)
    credit.record_outcome("b", "p", "t", False, 6)
    credit.flush_pending(6, {"t": [True]})
    # Baseline (−1 + 1 − 1)/3.
    assert rewards(buffer) == {"a": pytest.approx(4 / 3), "b": pytest.approx(-2 / 3)}


def test_a_use_is_compared_with_what_is_in_when_it_has_waited_long_enough(buffer: TrainingBuffer) -> None:
    credit = Credit(buffer, relative=True, settling=Settling(rollouts=3, steps=4))
    credit.record_outcome("a", "p", "t", True, 3)
    credit.record_free_outcome("p", False, 3)  # the other two have failed
    credit.flush_pending(6, {"t": [True]})
    assert rewards(buffer) == {}
    credit.flush_pending(7, {"t": [True]})
    assert rewards(buffer) == {"a": 2.0}
