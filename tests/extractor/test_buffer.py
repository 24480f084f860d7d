"""Training buffer: from uses to CISPO batches, against numbers worked out by hand."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_comprl.extractor import buffer as buffer_module
from verl_comprl.extractor.buffer import KEEP_UNREFERENCED_STEPS, TrainingBatch, TrainingBuffer
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord

MakeRecord = Callable[..., GenerationRecord]


@pytest.fixture
def filled(make_record: MakeRecord) -> Callable[..., TrainingBuffer]:
    """Return a function that makes buffers with records a, b and c."""

    def make(batch_size: int, *, alpha: float = 0.5, cooldown: float = 1) -> TrainingBuffer:
        buffer = TrainingBuffer(batch_size, alpha=alpha, cooldown=cooldown)
        for id in "abc":
            buffer.add(make_record(id))
        return buffer

    return make


def use(buffer: TrainingBuffer, **rewards: list[float]) -> int:
    for id, values in rewards.items():
        for value in values:
            assert buffer.record_reward(id, value)
    return buffer.collect()


def full(buffer: TrainingBuffer, step: int) -> TrainingBatch:
    batch = buffer.next_batch(step)
    assert batch is not None
    return batch


def counts(buffer: TrainingBuffer, id: str) -> tuple[int, int | None]:
    record = buffer._records.get(id)
    assert record is not None
    return record.train_count, record.last_trained


def ids(batch: TrainingBatch) -> list[str]:
    return [record.id for record in batch.records]


def test_two_batches_from_two_steps(filled: Callable[..., TrainingBuffer]) -> None:
    buffer = filled(2)
    # a: (1 − 1 + 1)/3 = 1/3, b: −1; mean −1/3; never trained, so w = 1
    assert use(buffer, a=[1, -1, 1], b=[-1]) == 2
    batch = full(buffer, 1)
    assert ids(batch) == ["a", "b"]
    assert batch.rewards == pytest.approx([1 / 3, -1]) and batch.weights == [1, 1]
    assert batch.advantages == pytest.approx([2 / 3, -2 / 3])
    buffer.trained()
    assert [counts(buffer, id) for id in "abc"] == [
        (1, 1),
        (1, 1),
        (0, None),
    ]
    # mean of −1 and 1 is 0; trained once before, a step ago: w = 2^−½
    assert use(buffer, a=[-1], b=[1]) == 2
    batch = full(buffer, 2)
    assert batch.weights == pytest.approx([1 / math.sqrt(2)] * 2)
    assert batch.advantages == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)])
    buffer.trained()
    assert counts(buffer, "a") == (2, 2)


def test_two_samples_of_a_record_in_one_batch_are_weighted_in_order(filled: Callable[..., TrainingBuffer]) -> None:
    buffer = filled(4, cooldown=0)
    use(buffer, a=[1, -1, 1], b=[-1])
    assert buffer.next_batch(1) is None
    use(buffer, a=[-1], b=[1])
    # rewards 1/3 −1 −1 1: mean −1/6; deviations 1/2 −5/6 −5/6 7/6, the last two times 2^−½ = 0.7071068
    batch = full(buffer, 2)
    assert ids(batch) == ["a", "b", "a", "b"]
    assert batch.advantages == pytest.approx([0.5, -0.8333333, -0.5892557, 0.8249579], abs=1e-7)
    assert batch.records[0] == batch.records[2]  # both carry the counts before this update
    buffer.trained()
    assert counts(buffer, "a") == (2, 2)


def test_a_sample_on_cooldown_has_weight_0_and_does_not_extend_the_cooldown(
    filled: Callable[..., TrainingBuffer],
) -> None:
    buffer = filled(2, cooldown=2)
    weights = []
    for step in (1, 2, 3):
        use(buffer, a=[1], b=[-1])
        weights.append(full(buffer, step).weights[0])
        buffer.trained()
    # step 2 − 1 < δ = 2 does not train; at step 3 the last training is two steps ago, and it was the only one
    assert weights == pytest.approx([1, 0, 1 / math.sqrt(2)])


def test_a_cooldown_of_one_step_keeps_a_record_from_being_trained_on_twice_in_a_step(
    filled: Callable[..., TrainingBuffer],
) -> None:
    buffer = filled(2)
    for _ in range(3):
        use(buffer, a=[1], b=[-1])
    # Three batches wait. Two updates in actor step 3: t − t_last = 0 < δ = 1 for the second; the third is a step later.
    weights = []
    for step in (3, 3, 4):
        weights.append(full(buffer, step).weights)
        buffer.trained()
    assert weights == [[1, 1], [0, 0], pytest.approx([1 / math.sqrt(2)] * 2)]
    assert counts(buffer, "a") == (2, 4)


def test_a_cooldown_of_one_step_keeps_the_second_sample_of_a_record_out_of_a_batch(
    filled: Callable[..., TrainingBuffer],
) -> None:
    buffer = filled(3)
    use(buffer, a=[1])
    use(buffer, a=[-1], b=[-1])
    assert full(buffer, 2).weights == [1, 0, 1]


def test_a_batch_takes_the_oldest_samples_and_the_others_stay(filled: Callable[..., TrainingBuffer]) -> None:
    buffer = filled(2)
    use(buffer, c=[1])
    use(buffer, b=[1])
    use(buffer, a=[-1])
    assert ids(full(buffer, 2)) == ["c", "b"] and len(buffer) == 3
    buffer.trained()
    assert len(buffer) == 1 and buffer.next_batch(2) is None
    use(buffer, c=[-1])
    assert ids(full(buffer, 3)) == ["a", "c"]


def test_only_trained_removes_a_batch(filled: Callable[..., TrainingBuffer]) -> None:
    buffer = filled(2)
    use(buffer, a=[1], b=[-1])
    batch = full(buffer, 1)
    assert full(buffer, 1) == batch
    use(buffer, c=[1])  # arrives while the extractor is being trained
    buffer.trained()
    assert len(buffer) == 1 and counts(buffer, "c") == (0, None)
    use(buffer, a=[1])
    assert ids(full(buffer, 3)) == ["c", "a"]


def test_uses_of_unknown_records_are_refused(filled: Callable[..., TrainingBuffer]) -> None:
    buffer = filled(1)
    assert not buffer.record_reward("imported", 1.0)
    assert buffer.collect() == 0 and buffer.next_batch(1) is None


def test_adding_a_known_record_keeps_its_counts(filled: Callable[..., TrainingBuffer], make_record: MakeRecord) -> None:
    buffer = filled(2)
    use(buffer, a=[1], b=[-1])
    full(buffer, 1)
    buffer.trained()
    buffer.add(make_record("a", response_ids=(9, 9)))
    assert buffer._records.get("a") == make_record("a", train_count=1, last_trained=1) and buffer.record_count == 3


def test_forget_keeps_records_that_are_or_recently_were_referred_to(make_record: MakeRecord) -> None:
    buffer = TrainingBuffer(9, alpha=0.5, cooldown=1)
    for id in ("answer", "entry", "replaced", "sampled", "used"):
        buffer.add(make_record(id, created_step=1))
    use(buffer, sampled=[1])
    buffer.record_reward("used", 1)
    buffer.forget(["entry", "replaced", "not a record"], 1)
    last = KEEP_UNREFERENCED_STEPS
    buffer.forget(["entry", "replaced"], last)
    assert buffer.record_count == 5
    buffer.forget(["entry"], last + 1)  # an episode guided by the replaced entry may still be running
    assert buffer.record_count == 4 and buffer._records.get("answer") is None
    buffer.forget(["entry", "replaced"], last + 2)
    buffer.forget(["entry"], 2 * last)
    buffer.forget(["entry"], 3 * last - 1)
    assert buffer.record_reward("replaced", 1) and buffer.record_count == 4
    buffer.collect()
    buffer.forget([], 3 * last)
    assert buffer._records.get("replaced") and buffer._records.get("entry")
    buffer.forget([], 4 * last)
    assert buffer._records.get("entry") is None and buffer.record_count == 3


def test_everything_survives_a_restart(
    filled: Callable[..., TrainingBuffer], make_record: MakeRecord, tmp_path: Path
) -> None:
    buffer = filled(2)
    buffer.add(make_record("answer", kind=CallKind.ANSWER, weight_version=3, created_step=8))
    use(buffer, a=[1], b=[-1])
    use(buffer, c=[1])
    full(buffer, 1)
    buffer.trained()
    buffer.record_reward("a", -1)
    buffer.record_reward("a", 1)
    buffer.save(tmp_path / "buffer")

    restored = filled(2)
    restored.add(make_record("gone"))
    restored.restore(tmp_path / "buffer")
    assert restored._records.get("gone") is None and restored.record_count == 4
    kept = ("a", "c", "answer")
    assert [restored._records.get(id) for id in kept] == [buffer._records.get(id) for id in kept]
    assert len(restored) == 1 and restored.next_batch(1) is None
    assert (restored.collect(), buffer.collect()) == (1, 1)
    batch = full(restored, 2)
    # c: 1, never trained; a: 0, trained at step 1; mean ½
    assert batch.advantages == pytest.approx([0.5, -0.5 / math.sqrt(2)])
    assert batch == full(buffer, 2)


def test_a_restored_buffer_drops_records_when_the_saved_one_does(
    filled: Callable[..., TrainingBuffer], tmp_path: Path
) -> None:
    buffer, restored = filled(2), filled(2)
    buffer.forget([], 5)
    buffer.save(tmp_path)
    restored.restore(tmp_path)
    last = 5 + KEEP_UNREFERENCED_STEPS
    for step, left in ((last - 1, buffer.record_count), (last, 0)):
        for each in (buffer, restored):
            each.forget([], step)
            assert each.record_count == left


def test_records_and_uses_added_during_a_save_do_not_break_it(
    filled: Callable[..., TrainingBuffer],
    make_record: MakeRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = filled(1)
    write = buffer_module.write_records

    def write_while_an_answer_fails(path: Path, records: list[GenerationRecord]) -> None:
        buffer.add(make_record("late"))
        buffer.record_reward("late", -1)
        write(path, records)

    monkeypatch.setattr(buffer_module, "write_records", write_while_an_answer_fails)
    buffer.record_reward("a", 1)
    buffer.save(tmp_path)
    restored = filled(1)
    restored.restore(tmp_path)
    assert restored._records.get("late") is None and restored.collect() == 1
    assert ids(full(restored, 1)) == ["a"]
    assert buffer.collect() == 2


def test_an_empty_buffer_survives_a_restart(filled: Callable[..., TrainingBuffer], tmp_path: Path) -> None:
    TrainingBuffer(2, alpha=0.5, cooldown=1).save(tmp_path)
    restored = filled(2)
    restored.restore(tmp_path)
    assert (restored.record_count, len(restored), restored.collect()) == (0, 0, 0)


def test_samples_that_lag_too_far_behind_are_left_out_and_counted(make_record: MakeRecord, tmp_path: Path) -> None:
    buffer = TrainingBuffer(2, alpha=0.5, cooldown=0, max_staleness=3)
    for id, version in (("old", 1), ("edge", 2), ("new", 5)):
        buffer.add(make_record(id, weight_version=version))
    use(buffer, old=[1], edge=[1], new=[-1])
    batch = buffer.next_batch(1, version=5)  # 5 − 1 > 3, 5 − 2 is not
    assert batch is not None and ids(batch) == ["edge", "new"] and buffer.stale == 1
    buffer.trained()
    assert len(buffer) == 0
    buffer.save(tmp_path)
    restored = TrainingBuffer(2, alpha=0.5, cooldown=0, max_staleness=3)
    restored.restore(tmp_path)
    assert restored.stale == 1


def test_records_can_be_restored_without_rewards(make_record: Callable[..., GenerationRecord], tmp_path: Path) -> None:
    buffer = TrainingBuffer(2, alpha=0.5, cooldown=1)
    buffer.add(make_record("used"))
    buffer.add_format_failure(make_record("unreadable"), -1.0)
    use(buffer, used=[1.0])
    buffer.record_reward("used", 1.0)
    buffer.save(tmp_path)
    other = TrainingBuffer(2, alpha=0.5, cooldown=1)
    other.restore(tmp_path, rewards=False)
    assert other._records.get("used") == buffer._records.get("used") and len(other) == 0 and other.collect() == 0
