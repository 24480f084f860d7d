"""Updates of entries that others have replaced meanwhile."""

from typing import Any

import pytest

from verl_comprl.experience import Add, Merge, Update
from verl_comprl.experience.schema import MAX_ANCESTORS


def key(word: str) -> Add:
    return Add(title=word, content=f"about {word}")


async def test_an_update_replaces_the_newest_descendant_of_an_entry_that_was_replaced(bank: Any, apply: Any) -> None:
    a, b = (await apply(bank, key("a"), key("b"))).new_ids
    await apply(bank, Update(ids=(1,), title="a", content="second"), call_id="2", listed=[a])
    await apply(bank, Update(ids=(1,), title="a", content="third"), call_id="3", listed=[a])
    report = await apply(bank, Update(ids=(1, 2), title="ab", content="both"), call_id="4", listed=[a, b])
    (entry,) = bank.entries()
    assert entry.content == "both" and (report.updated, report.rejected) == (1, 0)
    assert b in entry.parents and a not in entry.parents and len(entry.parents) == 2


@pytest.mark.parametrize("meanwhile", [["a"], ["a", "a again"]])
async def test_two_updates_of_what_became_the_same_entry_are_both_kept(bank: Any, apply: Any, meanwhile: Any) -> None:
    # An episode was guided by an entry, and an answer rested on the entry that had replaced it by then.
    (a,) = (await apply(bank, key("a"))).new_ids
    (b,) = (await apply(bank, Update(ids=(1,), title="b", content="b"), call_id="1", listed=[a])).new_ids
    for number, title in enumerate(meanwhile):
        await apply(bank, Update(ids=(1,), title=title, content="c"), call_id=f"2{number}", listed=[b], task="open")
    (now,) = bank.entries()
    updates = (Update(ids=(1,), title="d", content="first"), Update(ids=(2,), title="e", content="second"))
    report = await apply(bank, *updates, call_id="3", listed=[a, b])
    assert (report.updated, report.rejected) == (2, 0)
    assert [entry.content for entry in bank.entries()] == ["first", "second"]
    assert {entry.parents for entry in bank.entries()} == {(now.id,)}
    assert {entry.tasks for entry in bank.entries()} == {("fetch", "open")} and await bank.verify() == []


async def test_an_update_of_an_entry_that_was_merged_with_others_leaves_what_came_of_them(
    bank: Any, apply: Any
) -> None:
    a, b = (await apply(bank, key("a"), key("b"))).new_ids
    merge = Merge(ids=(1, 2), title="ab", content="both")
    (ab,) = (await apply(bank, merge, call_id="merge", listed=[a, b])).new_ids
    report = await apply(bank, Update(ids=(1,), title="a", content="more"), call_id="late", listed=[a])
    assert (report.added, report.updated, report.rejected) == (1, 0, 0)
    assert bank.get(ab) is not None and [entry.content for entry in bank.entries()] == ["both", "more"]


async def test_lineage_is_that_of_the_entries_also_in_a_bank_that_was_opened_again(open_bank: Any, apply: Any) -> None:
    """An episode that waits meanwhile must neither add what it would have replaced, nor leave a quarantine behind."""
    bank = await open_bank()
    first = at = (await apply(bank, key("a"))).new_ids[0]
    for number in range(3):
        update = Update(ids=(1,), title="a", content=str(number))
        (at,) = (await apply(bank, update, call_id=str(number), listed=[at])).new_ids
    await bank.quarantine([at], "harmful")
    await bank.close()
    bank = await open_bank()
    late = Update(ids=(1,), title="a", content="late")
    report = await apply(bank, late, call_id="late", listed=[first])
    (entry,) = bank.entries()
    assert (report.updated, report.added) == (1, 0) and (entry.content, entry.parents) == ("late", (at,))
    assert entry.ancestors[0] == at and entry.ancestors[-1] == first and len(entry.ancestors) == 4
    assert "harmful" in entry.quarantined


async def test_the_newest_of_those_that_stand_for_an_entry_is_found_until_it_is_removed(bank: Any, apply: Any) -> None:
    (a,) = (await apply(bank, key("a"))).new_ids
    updates = (Update(ids=(1,), title="b", content="first"), Update(ids=(2,), title="c", content="second"))
    (b,) = (await apply(bank, Update(ids=(1,), title="b", content="b"), call_id="1", listed=[a])).new_ids
    first, second = (await apply(bank, *updates, call_id="2", listed=[a, b])).new_ids
    assert bank._table.current(a) == bank._table.current(b) == second
    await bank.delete([second])
    assert bank._table.current(a) == first
    await bank.delete([first])
    assert bank._table.current(a) is None and not bank._table._successors


async def test_an_entry_remembers_the_latest_of_its_ancestors(bank: Any, apply: Any) -> None:
    (at,) = (await apply(bank, key("a"))).new_ids
    seen = [at]
    for number in range(MAX_ANCESTORS + 1):
        update = Update(ids=(1,), title="a", content=str(number))
        (at,) = (await apply(bank, update, call_id=str(number), listed=[at])).new_ids
        seen.append(at)
    assert bank.get(at).ancestors == tuple(seen[-2:0:-1])
    assert bank._table.current(seen[0]) is None and bank._table.current(seen[1]) == at
