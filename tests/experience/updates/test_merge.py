"""The chunks of the periodic merge, and a pass with scripted answers."""

from collections.abc import Callable
from typing import Any

import pytest

from verl_comprl.experience import Add, Discard, Experience, Merge, MergePass, Retain


def made(count: int) -> list[Experience]:
    return [Experience(id=str(n), title="", content=f"c{n}") for n in range(count)]


def contents(chunk: list[Experience]) -> list[str]:
    return [entry.content for entry in chunk]


def test_chunks_of_five_without_carry() -> None:
    merge = MergePass(made(12))
    assert [len(merge.next_chunk()) for _ in range(4)] == [5, 5, 2, 0]


def test_only_the_newest_survivors_are_carried() -> None:
    merge, entries = MergePass(made(20)), made(20)
    first = merge.next_chunk()
    assert contents(merge.next_chunk(first[3:])) == ["c3", "c4", "c5", "c6", "c7", "c8", "c9"]
    third = merge.next_chunk(entries[:8])  # eight survivors: the last five are carried
    assert contents(third) == ["c3", "c4", "c5", "c6", "c7", "c10", "c11", "c12", "c13", "c14"]


def test_a_single_last_entry_is_not_merged_alone() -> None:
    merge = MergePass(made(6))
    first = merge.next_chunk()
    assert contents(merge.next_chunk(first[:1])) == ["c0", "c5"]
    merge = MergePass(made(6))
    merge.next_chunk()
    assert merge.next_chunk() == []
    assert MergePass([]).next_chunk() == []
    with pytest.raises(ValueError, match="got 0"):
        MergePass([], chunk_size=0)


async def test_pass_over_a_bank(bank: Any, apply: Any) -> None:
    for n in range(12):
        await apply(bank, Add(title=f"lesson {n}", content=f"content {n}"), call_id=f"d{n}")

    def merge_all(chunk: list[Experience]) -> list[Any]:
        return [Merge(ids=tuple(range(1, len(chunk) + 1)), title="all", content="+".join(e.content for e in chunk))]

    def fail(chunk: list[Experience]) -> None:
        return None

    def retain_one(chunk: list[Experience]) -> list[Any]:
        return [Retain(ids=(1,)), Discard(ids=tuple(range(2, len(chunk) + 1)))]

    script: list[Callable[[list[Experience]], list[Any] | None]] = [merge_all, fail, retain_one]
    seen: list[int] = []
    merge, survivors = MergePass(bank.entries()), []
    while chunk := merge.next_chunk(survivors):
        seen.append(len(chunk))
        operations = script[len(seen) - 1](chunk)
        survivors = []
        if operations is not None:
            listed = [entry.id for entry in chunk]
            report = await apply(bank, *operations, call_id=f"m{len(seen)}", listed=listed)
            survivors = [bank.get(id) for id in report.surviving_ids]

    # 5 are merged into 1; this one and the next 5 stay, as their merge fails; 1 of the last 2 is discarded.
    assert seen == [5, 6, 2]
    assert sorted(entry.title for entry in bank.entries()) == sorted(["all", *[f"lesson {n}" for n in range(5, 11)]])
    (merged,) = [entry for entry in bank.entries() if entry.title == "all"]
    assert merged.content == "+".join(f"content {n}" for n in range(5)) and len(merged.parents) == 5
