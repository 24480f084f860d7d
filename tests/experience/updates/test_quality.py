"""Detection of near-copies and of entries with a bad success rate."""

from typing import Any

import numpy as np

from verl_comprl.experience import Add, Experience, TaskUsage, Update
from verl_comprl.experience.updates.quality import Comparison, bad_records, compare_with_free, free_success_rates


def used(id: str, *usage: TaskUsage, **fields: Any) -> Experience:
    return Experience(id=id, title="", content="c", tasks=("light",), usage=usage, **fields)


def entry(id: str, uses: int, successes: int, task: str = "light", **fields: Any) -> Experience:
    return used(id, TaskUsage(task=task, uses=uses, successes=successes), **fields)


def test_a_record_is_bad_below_the_free_half_by_more_than_the_margin() -> None:
    entries = [
        entry("too few uses", 9, 0),
        entry("bad", 10, 2),
        entry("at the margin", 10, 3),
        entry("in quarantine already", 10, 0, quarantined="before"),
        entry("task without a free half", 10, 0, task="open"),
    ]
    half = [True, False] * 5
    # 2/10 < 0.5 - 0.2, 3/10 is not.
    settings = {"min_uses": 10, "margin": 0.2, "asked_weight": 0.5}
    reasons = bad_records(entries, {"light": half}, **settings)
    assert reasons == {"bad": "2 of 10 successes, free half 0.50"}
    assert bad_records(entries, {"light": half}, **{**settings, "min_uses": 0}) == {}
    assert bad_records(entries, {"light": half[1:]}, **settings) == {}  # too few to compare with


def test_success_is_compared_task_by_task_with_the_entrys_uses_as_weights() -> None:
    both = used("both", TaskUsage(task="easy", uses=6, successes=5), TaskUsage(task="hard", uses=2))
    free = {"easy": 0.9, "hard": 0.1, "other": 1.0}
    assert compare_with_free(both, free, asked_weight=0.5) == Comparison(8, 5, (6 * 0.9 + 2 * 0.1) / 8)
    # Averaged over all rollouts, the free half would seem to be worse than the entry, which was used where it is easy.
    outcomes = {"easy": [True] * 9 + [False], "hard": [True] + [False] * 9}
    reasons = bad_records([both], outcomes, min_uses=8, margin=0.05, asked_weight=0.5)
    assert reasons == {"both": "5 of 8 successes, free half 0.70"}
    # A task whose free half is unknown counts on neither side, nor towards the uses needed.
    assert compare_with_free(both, {"hard": 0.1}, asked_weight=0.5) == Comparison(2, 0, 0.1)
    assert bad_records([both], {"easy": outcomes["easy"]}, min_uses=8, margin=0.05, asked_weight=0.5) == {}
    assert compare_with_free(both, {}, asked_weight=0.5) == Comparison(0, 0, 0)


def test_an_episode_that_read_an_entry_in_an_answer_has_the_weight_of_the_setting() -> None:
    asked = used("asked", TaskUsage(task="light", uses=1, successes=1, asked=6, asked_successes=2))
    assert compare_with_free(asked, {"light": 0.75}, asked_weight=0.5) == Comparison(4, 2, 0.75)
    outcomes = {"light": [True, True, True, False]}
    reasons = bad_records([asked], outcomes, min_uses=4, margin=0.2, asked_weight=0.5)
    assert reasons == {"asked": "2 of 4 successes, free half 0.75"}
    assert bad_records([asked], outcomes, min_uses=4, margin=0.2, asked_weight=0.0) == {}  # one use is too few


def test_free_success_needs_outcomes() -> None:
    outcomes = {"a": [True, False], "b": [True], "c": []}
    assert free_success_rates(outcomes) == {"a": 0.5, "b": 1.0}
    assert free_success_rates(outcomes, min_outcomes=2) == {"a": 0.5}


async def test_retired_entries_are_not_found_until_released(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retire_min_uses=2, retire_margin=0.1)
    bad, good = (
        await apply(bank, Add(title="lamp", content="light it"), Add(title="lamp", content="leave it"))
    ).new_ids
    for success in (False, False):
        bank.record_outcome([bad], success, task="fetch")
    bank.record_outcome([good], True, task="fetch")
    assert await bank.retire({"fetch": [True, False]}) == [bad]
    assert await bank.retire({"fetch": [True, False]}) == []
    assert [(await bank.retrieve("lamp light it")).entry.id for _ in range(3)] == [good] * 3
    assert bank.statistics()["quarantined"] == 1
    assert bad in {
        found.id for found, _ in await bank.search("lamp light it")
    }  # search, which is for inspection, still returns it
    await bank.close()
    bank = await open_bank()
    assert bank.get(bad).quarantined == "0 of 2 successes, free half 0.50"
    assert (await bank.retrieve("lamp light it", exclude=[good])).status == "nothing"
    await bank.release([bad, "unknown"])
    assert (await bank.retrieve("lamp light it", exclude=[good])).entry.id == bad


async def test_a_near_copy_is_not_added(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(dedup_similarity=0.999)
    first = await apply(bank, Add(title="lamp", content="light it"), Add(title="lamp", content="light it"))
    assert (first.added, first.rejections) == (1, {"duplicate": 1})
    again = await apply(
        bank,
        Add(title="it", content="lamp light"),  # the same words: the same vector of the fake embedder
        Add(title="door", content="open it"),
        Update(ids=(1,), title="lamp", content="light it"),  # an update may repeat what it replaces
        call_id="second",
        listed=first.new_ids,
    )
    assert (again.added, again.updated, again.rejections) == (1, 1, {"duplicate": 1})
    assert len(bank) == 2
    vectors = await bank._ledger.store.vectors([entry.id for entry in bank.entries()])
    assert float(np.max(np.triu(vectors @ vectors.T, 1))) < 0.999


async def test_near_copies_in_another_scope_are_kept(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(dedup_similarity=0.999, scope="task")
    await apply(bank, Add(title="lamp", content="light it"), task="light")
    assert (await apply(bank, Add(title="lamp", content="light it"), call_id="b", task="open")).added == 1
    assert (await apply(bank, Add(title="lamp", content="light it"), call_id="c", task="open")).added == 0
