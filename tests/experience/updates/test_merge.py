"""Chunks of a merge pass: the entries of each call and their order."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.experience import Add, Experience, make_embedder
from verl_comprl.experience.updates.merge import merge_groups, neighbour_chunks, split_into_runs


def vectors(count: int, dimension: int = 8, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def chunks_by_sorting(rows: np.ndarray, size: int) -> list[list[int]]:
    """The same rule without any bookkeeping: sort what is left by similarity to the beginning of the last chunk."""
    left, start, chunks = set(range(len(rows))), 0, []
    while left:
        order = sorted(left, key=lambda row: (row != start, -float(rows[row] @ rows[start])))
        chunks.append(sorted(order[:size]))
        left -= set(order[:size])
        start = order[size] if len(order) > size else -1
    return chunks


@given(count=st.integers(0, 90), size=st.integers(1, 6), seed=st.integers(0, 5))
def test_chunks_are_the_nearest_that_are_left_and_cover_every_row_once(count: int, size: int, seed: int) -> None:
    rows = vectors(count, seed=seed)
    chunks = neighbour_chunks(rows, size)
    assert chunks == chunks_by_sorting(rows, size)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(count))


def test_equal_rows_and_more_rows_than_are_dropped_at_once() -> None:
    rows = np.repeat(vectors(1), 300, axis=0)
    chunks = neighbour_chunks(rows, 2)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(300))
    assert chunks_by_sorting(vectors(400), 2) == neighbour_chunks(vectors(400), 2)


def test_a_cluster_larger_than_a_chunk_fills_successive_chunks() -> None:
    centres, noise = np.eye(40, dtype=np.float32), vectors(40, 40)
    rows = centres + 0.01 * noise
    rows[::5] = centres[0] + 0.01 * noise[::5]  # eight near-copies, spread over the forty
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    chunks = neighbour_chunks(rows, 3)
    copies = set(range(0, 40, 5))
    assert [set(chunk) & copies for chunk in chunks[:3]] == [set(chunk) for chunk in chunks[:2]] + [
        copies.difference(*chunks[:2])
    ]


def test_a_chunk_has_at_least_one_row() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        neighbour_chunks(vectors(3), 0)


def entry(
    id: str, tasks: tuple[str, ...] = (), environments: tuple[str, ...] = (), quarantined: str = ""
) -> Experience:
    return Experience(id=id, title="", content="c", tasks=tasks, environments=environments, quarantined=quarantined)


def test_entries_that_one_query_may_find_are_merged_together() -> None:
    entries = [
        entry("1", ("b",), ("x",)),
        entry("2", ("a",), ("y",)),
        entry("3", ("a", "b"), ("x", "y")),
        entry("4", ("b",), ("x",), quarantined="bad"),
        entry("5"),
    ]

    def ids(scope: str) -> list[str]:
        return ["".join(entry.id for entry in group) for group in merge_groups(entries, scope)]

    assert ids("all") == ["1235"]
    assert ids("task") == ["1", "23", "5"]  # the entry of both tasks is in one group only
    assert ids("environment") == ["13", "2", "5"]
    assert merge_groups([], "all") == []


def test_runs_are_even_not_too_short_and_end_with_their_group() -> None:
    letters = "abcdefghijklmnopqrstuvw"  # 23
    assert ["".join(run) for run in split_into_runs([letters], 4)] == ["abcdef", "ghijkl", "mnopqr", "stuvw"]
    assert ["".join(run) for run in split_into_runs([letters], 1)] == [letters]
    assert ["".join(run) for run in split_into_runs(["abcdefghij", "klm"], 4)] == ["abcd", "efgh", "ij", "klm"]
    assert split_into_runs([], 4) == []


async def test_chunks_of_a_bank_follow_its_scope_and_leave_out_what_is_in_quarantine(
    open_bank: Any, apply: Any
) -> None:
    bank = await open_bank(scope="task")
    words = ("key", "door", "lamp", "trap")
    ids: dict[str, list[str]] = {}
    for task in ("light", "open"):
        adds = [Add(title=word, content=f"{word} of {task}") for word in (*words, *words)]
        ids[task] = list((await apply(bank, *adds, call_id=task, task=task)).new_ids)
    await bank.quarantine(ids["open"][:1], "bad")
    chunks = await bank.merge_chunks(2)
    found = [[id for chunk in group for id in chunk] for group in chunks]
    assert [sorted(group) for group in found] == [sorted(ids["light"]), sorted(ids["open"][1:])]
    # The same word was added twice, four entries apart.
    assert all(bank.get(first).title == bank.get(second).title for first, second in chunks[0])


@pytest.mark.slow
async def test_a_near_copy_and_a_contradiction_meet_however_far_apart_they_were_added() -> None:
    """With the built-in embedder, on lessons of one game, which are all alike to a model of general text."""
    others = [
        f"{what} {where}"
        for what in (
            "Pick up the key before you walk to the",
            "A monster often waits behind the",
            "Count your turns while you search the",
            "Do not stand still next to the",
            "Read the message line when you enter the",
            "Throw a dagger from afar at what guards the",
        )
        for where in ("cellar", "bridge", "tower", "garden", "library", "harbour", "mine", "temple")
    ]
    lesson = "Step on a grey trapdoor only when your hit points are low."
    copy = "When hit points are low, and only then, step on a grey trapdoor."
    contradiction = "Never step on a grey trapdoor when your hit points are low."
    texts = [lesson, *others[:24], copy, *others[24:], contradiction]
    embedder = await make_embedder("builtin")
    chunks = neighbour_chunks(await embedder.embed_documents(texts), 5)
    together = {texts.index(lesson), texts.index(copy), texts.index(contradiction)}
    assert any(together <= set(chunk) for chunk in chunks)
    # Not because the first chunk begins with the lesson.
    texts = [*others[:10], lesson, *others[10:30], copy, *others[30:], contradiction]
    chunks = neighbour_chunks(await embedder.embed_documents(texts), 5)
    together = {texts.index(lesson), texts.index(copy), texts.index(contradiction)}
    assert any(together <= set(chunk) for chunk in chunks)
