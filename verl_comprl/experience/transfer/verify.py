"""Checks that memory and store hold the same entries.

Owns the comparison, entry by entry. Damage to a snapshot is detected in ``snapshot``.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore
from verl_comprl.experience.store.errors import StoreError

_COUNTERS = {
    "usage", "retrievals", "last_retrieved_at", "trainings", "last_trained_step", "upvotes", "downvotes"
}  # fmt: skip


async def find_problems(store: ExperienceStore, entries: Mapping[str, Experience]) -> list[str]:
    """Return the differences, one line each; an empty list if there are none. Counters may be newer in memory.

    Args:
        store: The store, which must not be written during the call.
        entries: The entries in memory, by id.

    Raises:
        StoreError: If the store cannot be read at all.
    """
    stored = {entry.id: entry for entry in await store.load()}
    problems = []
    if (count := await store.count()) != len(stored) + len(store.contents.unreadable):
        problems.append(f"the store counts {count} entries, but lists {len(stored)}")
    problems += _named("only in the store", [id for id in stored if id not in entries])
    problems += _named("not in the store", [id for id in entries if id not in stored])
    both = [id for id in entries if id in stored]
    differ = [id for id in both if _facts(stored[id]) != _facts(entries[id])]
    problems += _named("with other text or provenance in the store than in memory", differ)
    problems += _named("replaced by another entry, but still in the store", store.contents.left_over)
    problems += _named("that cannot be read", [*store.contents.unreadable])
    ahead = [id for id in both if stored[id].retrievals > entries[id].retrievals or stored[id].uses > entries[id].uses]
    problems += _named("with higher counters in the store than in memory", ahead)
    try:
        lengths = np.linalg.norm(await store.vectors(both), axis=1)
    except StoreError as error:
        return [*problems, str(error)]
    # Negated, so that NaN, which fails every comparison, is a problem too.
    problems += _named("without a normalised vector", [both[n] for n in np.flatnonzero(~(abs(lengths - 1) < 1e-3))])
    return problems


def _facts(entry: Experience) -> dict[str, object]:
    return entry.model_dump(exclude=_COUNTERS)


def _named(problem: str, ids: Sequence[str]) -> list[str]:
    shown = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
    return [f"{len(ids)} entries {problem}: {shown}"] if ids else []
