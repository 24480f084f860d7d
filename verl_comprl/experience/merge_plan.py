"""Plans a merge of an open bank: chunks of neighbours, found with the vectors of the store.

Owns how entries and vectors are read without stopping anybody. Groups and chunks are pure functions in
``updates.merge``.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from verl_comprl.experience.ledger import Ledger
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.updates.merge import merge_groups, neighbour_chunks

_READ_BATCH = 512
"""Entries per read lock: a writer that waits for a reader blocks later readers, and so the actors' queries."""


async def plan_merge(ledger: Ledger, scope: str, size: int) -> list[list[list[str]]]:
    """Return the ids of all entries, in groups of chunks.

    Args:
        ledger: The entries and their store.
        scope: ``comprl.bank.scope``.
        size: Entries in a chunk.

    Raises:
        StoreError: If the store cannot give the vectors.
    """
    groups = merge_groups(ledger.table.by_id.values(), scope)
    return [await _chunks(ledger, group, size) for group in groups]


async def _chunks(ledger: Ledger, group: Sequence[Experience], size: int) -> list[list[str]]:
    ids: list[str] = []
    vectors: list[np.ndarray] = []
    for at in range(0, len(group), _READ_BATCH):
        async with ledger.reading():
            there = [entry.id for entry in group[at : at + _READ_BATCH] if entry.id in ledger.table.by_id]
            vectors.append(await ledger.store.vectors(there))
        ids += there
    # In a thread: it takes seconds for a large bank.
    chunks = await asyncio.to_thread(lambda: neighbour_chunks(np.concatenate(vectors), size))
    return [[ids[row] for row in chunk] for chunk in chunks]
