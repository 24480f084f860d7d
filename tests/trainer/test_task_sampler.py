"""Sampling from a mix of tasks."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from verl_comprl.trainer.task_sampler import TaskSampler

TASKS = ["room"] * 10 + ["shop"] * 3 + ["house"] * 5


def loader(workers: int = 0, batch: int = 6, seed: int = 0) -> StatefulDataLoader:
    sampler = TaskSampler(TASKS, seed=seed)
    rows: Any = range(len(TASKS))
    return StatefulDataLoader(rows, batch_size=batch, sampler=sampler, num_workers=workers, drop_last=True)


def batches(data: StatefulDataLoader, epochs: int) -> list[list[int]]:
    return [batch.tolist() for _ in range(epochs) for batch in data]


def test_every_batch_has_an_equal_share_of_each_task() -> None:
    found = batches(loader(), 4)
    assert len(found) == 4 * (len(TASKS) // 6)
    assert all(Counter(TASKS[row] for row in batch) == {"room": 2, "shop": 2, "house": 2} for batch in found)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 60))
def test_consecutive_draws_per_task_differ_by_at_most_one(tasks: list[str], length: int, start: int) -> None:
    sampler = TaskSampler(tasks)
    counts = Counter(tasks[sampler.draw(position)] for position in range(start, start + length))
    shares = [counts[name] for name in set(tasks)]
    assert max(shares) - min(shares) <= 1


def test_a_row_repeats_only_after_all_others_of_its_task() -> None:
    sampler = TaskSampler(TASKS)
    rooms = [row for row in map(sampler.draw, range(3 * 30)) if row < 10]
    assert [sorted(rooms[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3
    assert rooms[:10] != rooms[10:20]


def test_the_seed_determines_the_order() -> None:
    assert batches(loader(seed=1), 2) == batches(loader(seed=1), 2) != batches(loader(seed=2), 2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("done", [1, 3, 4, 8])
def test_a_resumed_loader_continues_the_same_sequence(workers: int, done: int) -> None:
    def endless(data: StatefulDataLoader):
        while True:
            yield from data

    whole = loader(workers)
    stream = endless(whole)
    for _ in range(done):
        next(stream)
    state = whole.state_dict()
    expected = [batch.tolist() for batch in islice(stream, 6)]
    resumed = loader(workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in islice(endless(resumed), 6)] == expected
