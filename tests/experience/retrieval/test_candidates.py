"""Candidates of a query where more entries are equally similar than a pool holds, on the real engine."""

from collections import Counter
from typing import Any

import pytest

from verl_comprl.experience import Add

WALK = Add(title="walk", content="east")
"""Entries of equal texts have equal vectors, as those of equal titles have with ``documents: title``."""


@pytest.mark.parametrize("count", [3, 8, 9, 24, 40])
async def test_equally_similar_entries_take_turns(open_bank: Any, apply: Any, count: int) -> None:
    bank = await open_bank(retrieval_pool=4, recency_seconds=0.0)
    ids = (await apply(bank, *[WALK] * count, Add(title="swim", content="west"))).new_ids[:count]
    found = Counter([(await bank.retrieve("walk east")).entry.id for _ in range(3 * count)])
    # Eq. 6 at equal places: the one that was retrieved least.
    assert found == dict.fromkeys(ids, 3)


async def test_a_new_entry_is_found_at_once_among_many_equal_ones(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retrieval_pool=4)
    old = (await apply(bank, *[WALK] * 20)).new_ids
    for _ in range(40):
        await bank.retrieve("walk east")
    (new,) = (await apply(bank, WALK, call_id="later")).new_ids
    assert (await bank.retrieve("walk east")).entry.id == new
    # An evaluation takes the one with the best record, wherever the engine has it.
    for id in (*old, new):
        bank.record_outcome([id], success=id == old[13])
    assert (await bank.retrieve("walk east", read_only=True)).entry.id == old[13]


async def test_less_similar_entries_fill_the_places_that_are_left(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retrieval_pool=4, recency_seconds=0.0, diversity=10.0)
    near = [Add(title="walk", content="east")] * 3
    far = [Add(title="walk", content="east over there")] * 5
    beyond = [Add(title="swim", content="west")] * 5
    ids = (await apply(bank, *near, *far, *beyond)).new_ids
    found = {(await bank.retrieve("walk east")).entry.id for _ in range(60)}
    # The first of the far ones has the last place, and those as similar share it.
    assert found == set(ids[:8])
