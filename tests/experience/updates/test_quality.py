"""Detection of near-copies and of entries with a bad success rate."""

from typing import Any

import numpy as np
import pytest

from verl_comprl.experience import Add, Experience, TaskUsage, Update, derive_id
from verl_comprl.experience.updates.planning import INHERITED
from verl_comprl.experience.updates.quality import Comparison, bad_records, compare_with_free, is_by_hand


def used(id: str, *usage: TaskUsage, **fields: Any) -> Experience:
    return Experience(id=id, title="", content="c", tasks=("light",), usage=usage, **fields)


def compared(episodes: float, successes: float, free: float, *, uses: int = 20, task: str = "light") -> TaskUsage:
    return TaskUsage(
        task=task, uses=uses, compared=episodes, compared_successes=successes, free_successes=episodes * free
    )


def test_a_record_is_bad_below_the_free_half_by_more_than_the_margin() -> None:
    entries = [
        used("too few uses", compared(9, 0, 0.5)),
        used("bad", compared(10, 2, 0.5)),
        used("at the margin", compared(10, 3, 0.5)),
        used("in quarantine already", compared(10, 0, 0.5), quarantined="before"),
        used("never compared", TaskUsage(task="open", uses=10)),
    ]
    # 2/10 < 0.5 - 0.2, 3/10 is not.
    reasons = bad_records(entries, min_uses=10, margin=0.2)
    assert reasons == {"bad": "2 of 10 successes, free half 0.50"}
    assert bad_records(entries, min_uses=0, margin=0.2) == {}
    own = "", reasons["bad"], INHERITED + reasons["bad"], f"{INHERITED}misleads"
    assert not any(map(is_by_hand, own)) and is_by_hand("misleads: 2 of 10 successes, free half 0.50")
    many = used("many", compared(300, 0, 0.5, uses=300))
    assert bad_records([many], min_uses=300, margin=0.2) == {"many": "0 of 300 successes, free half 0.50"}


def test_success_is_compared_task_by_task_with_the_entrys_uses_as_weights() -> None:
    both = used("both", compared(6, 5, 0.9, task="easy"), compared(2, 0, 0.1, task="hard"), TaskUsage(task="a", uses=9))
    assert compare_with_free(both) == pytest.approx(Comparison(8, 5, (6 * 0.9 + 2 * 0.1) / 8))  # the third: unknown
    # Averaged over all rollouts, the free half would seem to be worse than the entry, which was used where it is easy.
    assert bad_records([both], min_uses=8, margin=0.05) == {"both": "5 of 8 successes, free half 0.70"}
    weighed = used("weighed", compared(3e6 + 0.5, 0.25, 1.0, uses=4_000_000))
    (reason,) = bad_records([weighed], min_uses=1, margin=0).values()
    assert not is_by_hand(reason)
    assert compare_with_free(used("none")) == Comparison(0, 0, 0)


async def test_an_entry_that_is_always_better_than_the_free_half_of_its_time_is_kept(
    open_bank: Any, apply: Any
) -> None:
    """While the actor learns: .10 to .80 without the entry, 5 points more with it, a use of either outcome a step."""
    bank = await open_bank(retire_min_uses=10, retire_margin=0.1)
    (id,) = (await apply(bank, Add(title="lamp", content="light it"))).new_ids
    successes, expected = 0, 0.0
    for step in range(50):
        free = 0.1 + 0.7 * step / 49
        expected += free + 0.05
        success = expected - successes >= 0.5  # as many as expected, to the nearest
        successes += success
        bank.record_outcome([id], success, task="fetch")
        bank.record_comparison([id], success, free, task="fetch")
        assert await bank.retire() == []
    # 50 · (0.45 + 0.05) = 25 successes, against the mean of the free half's rates; its last rate is 0.80.
    assert compare_with_free(bank.get(id)) == pytest.approx(Comparison(50, 25, 0.45))


async def test_an_episode_that_read_an_entry_in_an_answer_is_compared_with_its_weight(
    open_bank: Any, apply: Any
) -> None:
    bank = await open_bank(asked_weight=0.5)
    (id,) = (await apply(bank, Add(title="lamp", content="light it"))).new_ids
    for success, free, asked in ((True, 0.25, False), (True, 0.75, True), (False, 0.5, True)):
        bank.record_outcome([id, derive_id("unknown")], success, task="light", asked=asked)
        bank.record_comparison([id, derive_id("unknown")], success, free, task="light", asked=asked)
    # 1 + 2/2 episodes, 1 + 1/2 successes; 0.25 + 0.75/2 + 0.5/2 = 0.875 without
    assert compare_with_free(bank.get(id)) == Comparison(2, 1.5, 0.4375)
    bank.record_comparison([id] * 3, False, 0.5, task="light")  # of outcomes that a restored bank has not counted
    assert bank.get(id).usage[0].compared == 3
    await bank.close()
    again = await open_bank()
    assert again.get(id).usage[0].compared == 3 and not again.unreadable


async def test_an_entry_that_is_gone_when_its_step_closes_is_not_compared(open_bank: Any, apply: Any) -> None:
    """Without a weight, too, with which a comparison counts nothing."""
    bank = await open_bank(asked_weight=0)
    (id,) = (await apply(bank, Add(title="lamp", content="light it"))).new_ids
    bank.record_outcome([id], True, task="light", asked=True)
    await bank.delete([id])
    bank.record_comparison([id], True, 0.5, task="light", asked=True)
    assert bank.entries() == []


async def test_retired_entries_are_not_found_until_released(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retire_min_uses=2, retire_margin=0.1)
    bad, good = (
        await apply(bank, Add(title="lamp", content="light it"), Add(title="lamp", content="leave it"))
    ).new_ids
    for success in (False, False):
        bank.record_outcome([bad], success, task="fetch")
        bank.record_comparison([bad], success, 0.5, task="fetch")
    bank.record_outcome([good], True, task="fetch")
    assert await bank.retire() == [bad]
    assert await bank.retire() == []
    assert [(await bank.retrieve("lamp light it")).entry.id for _ in range(3)] == [good] * 3
    assert bank.statistics()["quarantined"] == 1
    assert bad in {
        found.id for found, _ in await bank.search("lamp light it")
    }  # search, which is for inspection, still returns it
    await bank.close()
    bank = await open_bank()
    assert bank.get(bad).quarantined == "0 of 2 successes, free half 0.50"
    await bank.delete([good])
    assert (await bank.retrieve("lamp light it")).status == "nothing"
    await bank.release([bad, "unknown"])
    assert (await bank.retrieve("lamp light it")).entry.id == bad


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
