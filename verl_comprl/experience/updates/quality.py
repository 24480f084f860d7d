"""Detects near-copies of entries, and entries with a lower success rate than no experience.

Owns the two criteria. Whether they are applied, and what follows, is decided in ``bank``.
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
    """Return the keys of the vectors that are near-copies of a stored entry, or of an earlier one of ``vectors``.

    Args:
        store: The entries to compare with.
        vectors: New vectors, L2-normalised, by position in their answer.
        threshold: Cosine similarity from which two texts count as the same; 0 disables the check.
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
    """Return the ids of entries with a lower success rate than rollouts without experience, each with the reason.

    Args:
        entries: The bank.
        free_outcomes: Latest outcomes of the free half (rollouts without experience), by task.
        min_uses: Uses of an entry, and outcomes of its task's free half, needed to compare them; 0 disables the check.
        margin: How far below the free half's success rate an entry's must be.
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
