"""Which entries a bank is better off without: near-copies, and those with a bad record.

Owns the two judgements. Whether they are asked for, and what follows, is the bank's.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore, SearchRequest


async def duplicates(
    store: ExperienceStore,
    vectors: Mapping[int, np.ndarray],
    *,
    threshold: float,
    scope: tuple[str | None, str | None],
) -> set[int]:
    """Return the keys of the vectors that are near-copies of an entry in the store, or of an earlier one among them.

    Args:
        store: The entries to compare with.
        vectors: New vectors, L2-normalised, by position in their answer.
        threshold: Cosine similarity from which on two texts mean the same; 0 asks nothing.
        scope: Task and environment that an entry must have to be compared; None for any.
    """
    if not threshold or not vectors:
        return set()
    task, environment = scope
    hits = await store.search([SearchRequest(vector, 1, task, environment) for vector in vectors.values()])
    found: set[int] = set()
    kept: list[np.ndarray] = []
    for (position, vector), nearest in zip(vectors.items(), hits, strict=True):
        if (nearest and nearest[0].score >= threshold) or any(float(vector @ other) >= threshold for other in kept):
            found.add(position)
        else:
            kept.append(vector)
    return found


def bad_records(
    entries: Iterable[Experience], free_outcomes: Mapping[str, Collection[bool]], *, min_uses: int, margin: float
) -> dict[str, str]:
    """Return the ids of entries that did worse than no experience, with the reason in words.

    Args:
        entries: The bank.
        free_outcomes: Latest outcomes of the free half, by task.
        min_uses: Uses, and outcomes of the free half, from which on they count; 0 judges nobody.
        margin: How far below the free half a success rate must be.
    """
    if not min_uses:
        return {}
    free_success = {
        task: sum(outcomes) / len(outcomes) for task, outcomes in free_outcomes.items() if len(outcomes) >= min_uses
    }
    return {
        entry.id: f"{entry.successes} of {entry.uses} successes, free half {free_success[entry.task]:.2f}"
        for entry in entries
        if not entry.quarantined
        and entry.uses >= min_uses
        and entry.task in free_success
        and (entry.successes / entry.uses) < free_success[entry.task] - margin
    }
