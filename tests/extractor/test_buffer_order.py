"""The order of samples within a collection step says nothing about the outcomes."""

from collections.abc import Sequence

from verl_comprl.extractor.buffer import TrainingBuffer
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord


def batches(ids: Sequence[str], wins: int) -> list[list[float]]:
    """Rewards of the batches, if the first ``wins`` episodes to end were the successful ones, as they usually are."""
    buffer = TrainingBuffer(16, alpha=0.5, cooldown=0, max_answer_share=1.0)
    for number, id in enumerate(ids):
        buffer.add(GenerationRecord(id, CallKind.DISTILL, (1,), (2,), (-0.5,), weight_version=0))
        buffer.record_reward(id, 1.0 if number < wins else -1.0)
    buffer.collect()
    found = []
    while batch := buffer.next_batch(1):
        found.append(batch.rewards)
        buffer.trained()
    return found


def test_batches_mix_episodes_that_ended_early_and_late() -> None:
    # 16 of 48 episodes succeed and end first. A batch of 16 random ones has 5.3 successes, standard deviation 1.6; that
    # it has 1 or less, or 11 or more, happens in 0.3 % of all batches.
    steps = [batches([f"{step}/{number}" for number in range(48)], wins=16) for step in range(20)]
    wins = [rewards.count(1.0) for step in steps for rewards in step]
    assert len(wins) == 60 and sum(wins) == 16 * 20
    assert sum(2 <= count <= 10 for count in wins) >= 58
    first, last = (sum(step[at].count(1.0) for step in steps) / 20 for at in (0, -1))
    assert 4 < first < 6.7 and 4 < last < 6.7


def test_the_order_is_the_same_in_a_repeated_run() -> None:
    ids = [f"record {number}" for number in range(32)]
    assert batches(ids, wins=9) == batches(ids, wins=9)
