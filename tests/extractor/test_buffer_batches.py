"""Composition of a batch: outcomes of entries and answers, and format failures."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.extractor.buffer import (
    KEEP_UNREFERENCED_STEPS,
    WAITING_BATCHES,
    Sample,
    TrainingBatch,
    TrainingBuffer,
)
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord

MakeRecord = Callable[..., GenerationRecord]

# Kinds of call by the first letter of a record's name; x and y are format failures.
KINDS = {
    "e": CallKind.DISTILL,
    "m": CallKind.MERGE,
    "a": CallKind.ANSWER,
    "x": CallKind.DISTILL,
    "y": CallKind.ANSWER,
}


def make(name: str, version: int = 0) -> GenerationRecord:
    return GenerationRecord(name, KINDS[name[0]], (1,), (2,), (-0.5,), weight_version=version)


def buffer_of(batch_size: int, share: float = 1.0, cooldown: float = 0) -> TrainingBuffer:
    return TrainingBuffer(batch_size, alpha=0.5, cooldown=cooldown, max_answer_share=share)


def fill(buffer: TrainingBuffer, *names: str, reward: float = 1.0) -> None:
    """Add a sample per name, in this order: each in a collection step of its own, since those of one are shuffled."""
    for name in names:
        if name[0] in "xy":
            buffer.add_format_failure(make(name), -1.0)
        else:
            buffer.add(make(name))
            buffer.record_reward(name, reward)
            buffer.collect()


def names(batch: TrainingBatch | None) -> list[str] | None:
    return batch and [record.id for record in batch.records]


# ---- what waits ----


def test_outcomes_that_nobody_trains_on_make_room_for_newer_ones() -> None:
    """As after learning has stopped: each keeps its record, and a run has many steps."""
    buffer = buffer_of(2)
    fill(buffer, *(f"e{n}" for n in range(2 * WAITING_BATCHES + 3)))
    assert (len(buffer), buffer.dropped_outcomes) == (2 * WAITING_BATCHES + 1, 2)
    buffer.forget([], step=1)
    buffer.forget([], step=1 + KEEP_UNREFERENCED_STEPS)
    assert buffer.record_count == 2 * WAITING_BATCHES + 1
    assert names(buffer.next_batch(1)) == ["e2", "e3"]


def test_a_step_with_many_outcomes_loses_none() -> None:
    """They come at once, before any update could have taken them."""
    buffer = buffer_of(2)
    for step in range(2):
        for n in range(5 * WAITING_BATCHES):
            buffer.add(make(f"e{step}{n}"))
            buffer.record_reward(f"e{step}{n}", 1.0)
        buffer.collect()
        assert len(buffer) == (5 + 2 * step) * WAITING_BATCHES
    assert buffer.dropped_outcomes == 3 * WAITING_BATCHES


def test_outcomes_in_training_make_no_room(tmp_path: Path) -> None:
    buffer = buffer_of(2)
    fill(buffer, *(f"e{n}" for n in range(2 * WAITING_BATCHES)))
    assert names(buffer.next_batch(1)) == ["e0", "e1"]
    fill(buffer, "m1", "m2")
    assert buffer.trained() == ["e0", "e1"] and buffer.dropped_outcomes == 1
    assert names(buffer.next_batch(2)) == ["e3", "e4"]
    buffer.save(tmp_path)
    restored = buffer_of(2)
    restored.restore(tmp_path)
    assert (len(restored), restored.dropped_outcomes) == (2 * WAITING_BATCHES - 1, 1)


# ---- format failures ----


def test_at_most_a_quarter_of_a_batch_is_format_failures_the_latest_ones() -> None:
    buffer = buffer_of(8)
    fill(buffer, "x1", "e1", "x2", "e2", "e3", "x3", "e4", "x4", "e5", "x5", "e6", "e7")
    batch = buffer.next_batch(1)
    assert names(batch) == ["e1", "e2", "e3", "e4", "e5", "e6", "x4", "x5"]
    assert batch and [record.format_failure for record in batch.records] == [False] * 6 + [True] * 2
    buffer.trained()
    assert len(buffer) == 1 and buffer.dropped_failures == 3


def test_failures_alone_make_no_batch_and_wait_for_outcomes() -> None:
    buffer = buffer_of(8)
    fill(buffer, *(f"x{n}" for n in range(100)), "e1", "e2", "e3", "e4", "e5")
    assert buffer.next_batch(1) is None and len(buffer) == 7 and buffer.dropped_failures == 98
    fill(buffer, "e6")
    assert names(buffer.next_batch(1)) == ["e1", "e2", "e3", "e4", "e5", "e6", "x98", "x99"]


def test_a_batch_without_failures_is_all_outcomes() -> None:
    buffer = buffer_of(4)
    fill(buffer, "e1", "e2", "e3")
    assert buffer.next_batch(1) is None
    fill(buffer, "e4")
    assert names(buffer.next_batch(1)) == ["e1", "e2", "e3", "e4"]


def test_a_batch_of_less_than_four_never_has_a_failure() -> None:
    buffer = buffer_of(3)
    fill(buffer, "x1", "e1", "e2")
    assert buffer.next_batch(1) is None and buffer.dropped_failures == 1
    fill(buffer, "e3")
    assert names(buffer.next_batch(1)) == ["e1", "e2", "e3"]


def test_a_useful_text_in_a_failed_episode_does_better_than_an_unreadable_answer() -> None:
    buffer = buffer_of(4)
    fill(buffer, "e1", "e2", "e3", reward=-1.0)
    fill(buffer, "x1")
    batch = buffer.next_batch(1)
    assert batch and batch.rewards == [-1.0] * 4 and batch.advantages == [0.0, 0.0, 0.0, -1.0]


def test_failures_during_an_update_wait_and_those_in_training_are_not_dropped() -> None:
    buffer = buffer_of(4)
    fill(buffer, "x1", "e1", "e2", "e3")
    assert names(buffer.next_batch(1)) == ["e1", "e2", "e3", "x1"]
    fill(buffer, "x2", "x3", "e4", "e5", "e6")  # x3 replaces x2; x1 is being trained on
    buffer.trained()
    assert buffer.dropped_failures == 1
    assert names(buffer.next_batch(2)) == ["e4", "e5", "e6", "x3"]


@pytest.mark.parametrize("restarted", [False, True])
def test_failures_that_newer_ones_replaced_during_an_update_that_failed_are_counted(
    tmp_path: Path, restarted: bool
) -> None:
    buffer = buffer_of(8)
    fill(buffer, "x1", "x2", *(f"e{n}" for n in range(6)))
    assert names(buffer.next_batch(1)) == [*(f"e{n}" for n in range(6)), "x1", "x2"]
    fill(buffer, "x3")  # in the place of x1
    if restarted:
        buffer.save(tmp_path)
        buffer = buffer_of(8)
        buffer.restore(tmp_path)
    assert names(buffer.next_batch(2)) == [*(f"e{n}" for n in range(6)), "x2", "x3"]
    assert buffer.dropped_failures == 1
    buffer.trained()
    assert buffer.next_batch(3) is None and buffer.dropped_failures == 1


def test_failures_survive_a_restart_also_with_a_smaller_batch(tmp_path: Path) -> None:
    buffer = buffer_of(8)
    fill(buffer, "x1", "x2", "x3", "e1", "e2", "e3")
    buffer.save(tmp_path)
    for batch_size, expected in ((8, None), (4, ["e1", "e2", "e3", "x3"])):
        restored = buffer_of(batch_size)
        restored.restore(tmp_path)
        batch = restored.next_batch(1)
        assert restored.dropped_failures == 1 and names(batch) == expected
    assert batch and batch.records[-1].format_failure and batch.advantages[-1] == -2.0


def test_a_failure_that_replaces_another_during_a_save_does_not_break_it(tmp_path: Path) -> None:
    class Failures(list):
        """One more comes as soon as they have been read for the first time, as from the event loop's thread."""

        coming: str | None = "x3"

        def __iter__(self) -> Iterator[Sample]:
            yield from super().__iter__()
            name, self.coming = self.coming, None
            if name:
                fill(buffer, name)

    buffer = buffer_of(8)
    fill(buffer, "x1", "x2", *(f"e{n}" for n in range(8)))
    buffer._failures = Failures(buffer._failures)
    buffer.save(tmp_path)
    assert buffer.dropped_failures == 1
    restored = buffer_of(8)
    restored.restore(tmp_path)
    assert names(restored.next_batch(1)) == [*(f"e{n}" for n in range(7)), "x2"] and restored.dropped_failures == 1


def test_a_checkpoint_of_a_release_without_format_failures_is_refused(tmp_path: Path) -> None:
    buffer = buffer_of(4)
    fill(buffer, "e1")
    buffer.save(tmp_path)
    file = tmp_path / "records.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["format_failure"]), file)
    with pytest.raises(ValueError, match=r"records\.parquet does not hold generation records of this release"):
        buffer_of(4).restore(tmp_path)


def test_failures_that_lag_too_far_behind_are_left_out_too() -> None:
    buffer = TrainingBuffer(4, alpha=0.5, cooldown=0, max_staleness=1)
    buffer.add_format_failure(make("x1", version=3), -1.0)
    for name in ("e1", "e2", "e3", "e4"):
        buffer.add(make(name, version=5))
        buffer.record_reward(name, 1.0)
        buffer.collect()
    assert names(buffer.next_batch(1, version=5)) == ["e1", "e2", "e3", "e4"] and buffer.stale == 1


def test_the_record_of_a_dropped_failure_is_dropped_too() -> None:
    buffer = buffer_of(8)
    fill(buffer, *(f"x{n}" for n in range(100)))
    assert buffer.record_count == 2 and buffer._records.get("x99") and not buffer._records.get("x97")


def test_the_record_of_a_dropped_failure_stays_while_another_sample_is_of_it() -> None:
    buffer = buffer_of(8)
    fill(buffer, "x1", "x2", "x2", "x3", "e1", "e2", "e3", "e4", "e5", "e6")
    assert names(buffer.next_batch(1)) == ["e1", "e2", "e3", "e4", "e5", "e6", "x2", "x3"]


def test_records_of_waiting_failures_are_kept() -> None:
    buffer = buffer_of(4)
    fill(buffer, "x1")
    for step in range(0, 100, 10):
        buffer.forget([], step)
    fill(buffer, "e1", "e2", "e3")
    assert names(buffer.next_batch(100)) == ["e1", "e2", "e3", "x1"]


# ---- an outcome that is the only one of its kind ----


def test_an_outcome_without_others_of_its_kind_teaches_nothing_and_does_not_count() -> None:
    buffer = buffer_of(4, cooldown=5)
    fill(buffer, "e1", "e2", "m1", reward=1.0)
    fill(buffer, "e3", reward=-1.0)
    batch = buffer.next_batch(1)
    assert batch and batch.weights == [1, 1, 0, 1]
    assert batch.advantages == pytest.approx([2 / 3, 2 / 3, 0, -4 / 3])
    assert buffer.trained() == ["e1", "e2", "e3"] and len(buffer) == 0
    fill(buffer, "m1", "e1", reward=1.0)
    fill(buffer, "m2", "e4", reward=-1.0)
    batch = buffer.next_batch(2)
    assert names(batch) == ["m1", "e1", "m2", "e4"]
    # Only e1 was trained on a step ago, which is less than the cooldown.
    assert batch and batch.weights == [1, 0, 1, 1] and batch.advantages == pytest.approx([1, 0, -1, -1])


def test_format_failures_are_no_company_for_an_outcome_of_their_kind() -> None:
    """They do not enter its baseline; their own is known without it."""
    buffer = buffer_of(4)
    fill(buffer, "x1", "e1", "a1", "a2")
    batch = buffer.next_batch(1)
    assert names(batch) == ["e1", "a1", "a2", "x1"]
    assert batch and batch.weights == [0, 1, 1, 1] and batch.advantages == [0, 0, 0, -2]
    # The answers' rewards are equal: they were compared, which counts.
    assert buffer.trained() == ["a1", "a2", "x1"]


# ---- answers ----


@pytest.mark.parametrize(
    ("share", "waiting", "batch", "left"),
    [
        (0.5, ["a1", "a2", "a3", "e1", "m1"], ["a1", "a2", "e1", "m1"], 1),
        (0.5, ["a1", "a2", "a3", "a4", "e1"], ["a1", "a2", "a3", "e1"], 1),  # one entry: answers take the rest
        (0.5, ["a1", "a2", "a3", "a4"], ["a1", "a2", "a3", "a4"], 0),  # no entry waits
        (0.5, ["e1", "e2", "e3", "e4", "a1"], ["e1", "e2", "e3", "e4"], 1),  # the share is a limit, no quota
        (0.5, ["x1", "a1", "a2", "a3", "e1"], ["a1", "a2", "e1", "x1"], 1),  # half of the batch, not of the outcomes
        (0.5, ["y1", "a1", "a2", "e1", "e2", "e3"], ["a1", "e1", "e2", "y1"], 2),  # unreadable ones are answers, too
        (0.0, ["a1", "e1", "a2", "e2", "e3", "e4"], ["e1", "e2", "e3", "e4"], 2),
        (1.0, ["a1", "a2", "a3", "a4", "e1"], ["a1", "a2", "a3", "a4"], 1),
    ],
)
def test_answers_get_no_more_than_their_share_while_entries_wait(
    share: float, waiting: list[str], batch: list[str], left: int
) -> None:
    buffer = buffer_of(4, share)
    fill(buffer, *waiting)
    assert names(buffer.next_batch(1)) == batch
    buffer.trained()
    assert len(buffer) == left


def test_answers_over_their_share_come_first_in_the_next_batch() -> None:
    buffer = buffer_of(4, 0.5)
    fill(buffer, "a1", "a2", "a3", "e1", "e2")
    buffer.next_batch(1)
    buffer.trained()
    fill(buffer, "a4", "e3", "e4")
    assert names(buffer.next_batch(2)) == ["a3", "a4", "e3", "e4"]


WAITING = st.lists(st.lists(st.sampled_from("eeaaamxx"), max_size=12), max_size=12)


@given(steps=WAITING, batch_size=st.integers(1, 9), share=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_batches_are_full_within_their_shares_and_lose_no_outcome(
    steps: list[list[str]], batch_size: int, share: float
) -> None:
    buffer = buffer_of(batch_size, share)
    waiting: list[str] = []
    trained: Counter[str] = Counter()
    number = 0
    for step, letters in enumerate(steps):
        added = [f"{letter}{number + position}" for position, letter in enumerate(letters)]
        number += len(added)
        fill(buffer, *added)
        waiting += added
        while batch := names(buffer.next_batch(step)):
            waiting = check(batch, waiting, batch_size, share)
            trained.update(batch)
            buffer.trained()
    outcomes = [name for name in waiting if name[0] != "x"]
    assert len(outcomes) < batch_size and set(trained.values()) <= {1}


def check(batch: Sequence[str], waiting: list[str], batch_size: int, share: float) -> list[str]:
    """Check one batch against the rules, and return what waits afterwards."""
    assert len(batch) == batch_size and set(batch) <= set(waiting)
    left = [name for name in waiting if name not in batch]
    assert 4 * sum(name[0] in "xy" for name in batch) <= batch_size
    kinds = Counter(name[0] for name in batch)
    if kinds["a"] and kinds["a"] + kinds["y"] > share * batch_size:
        assert not [name for name in left if name[0] in "em"], "an entry waits behind too many answers"
    for group in ("a", "em"):  # within a group the oldest first
        chosen = [name for name in batch if name[0] in group]
        assert chosen == [name for name in waiting if name[0] in group][: len(chosen)]
    return left
