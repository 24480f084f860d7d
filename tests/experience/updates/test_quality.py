"""Detection of near-copies and of entries with a bad success rate."""

from typing import Any

import numpy as np

from verl_comprl.experience import Add, Experience, Update
from verl_comprl.experience.updates.quality import bad_records


def entry(id: str, uses: int, successes: int, **fields: Any) -> Experience:
    return Experience(id=id, title="", content="c", task="light", uses=uses, successes=successes, **fields)


def test_a_record_is_bad_below_the_free_half_by_more_than_the_margin() -> None:
    entries = [
        entry("too few uses", 9, 0),
        entry("bad", 10, 2),
        entry("at the margin", 10, 3),
        entry("in quarantine already", 10, 0, quarantined="before"),
        entry("task without a free half", 10, 0).model_copy(update={"task": "open"}),
    ]
    half = [True, False] * 5
    # 2/10 < 0.5 - 0.2, 3/10 is not.
    reasons = bad_records(entries, {"light": half}, min_uses=10, margin=0.2)
    assert reasons == {"bad": "2 of 10 successes, free half 0.50"}
    assert bad_records(entries, {"light": half}, min_uses=0, margin=0.2) == {}
    assert bad_records(entries, {"light": half[1:]}, min_uses=10, margin=0.2) == {}  # too few to compare with


async def test_retired_entries_are_not_found_until_released(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retire_min_uses=2, retire_margin=0.1)
    bad, good = (
        await apply(bank, Add(title="lamp", content="light it"), Add(title="lamp", content="leave it"))
    ).new_ids
    for success in (False, False):
        bank.record_outcome([bad], success)
    bank.record_outcome([good], True)
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
