"""Detects near-copies of entries, and compares the success with an entry to that without experience.

Owns the criteria. Whether they are applied, and what follows, is decided in ``bank``.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

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


class Comparison(NamedTuple):
    """Successes with an entry, and success without experience on the same mix of tasks."""

    episodes: float
    """Episodes that read the entry, those of answers weighted."""
    successes: float
    free_success: float
    """Success rate of the free half, averaged over the tasks with the entry's episodes as weights."""


def compare_with_free(entry: Experience, free_success: Mapping[str, float], *, asked_weight: float) -> Comparison:
    """Compare an entry with no experience, task by task: only over tasks of which both sides are known.

    Args:
        entry: The entry.
        free_success: Success rate of the free half (rollouts without experience), by task.
        asked_weight: Weight of an episode that read the entry only through an answer.
    """
    episodes = successes = expected = 0.0
    for usage in entry.usage:
        if usage.task in free_success:
            read, succeeded = usage.weighted(asked_weight)
            episodes, successes = episodes + read, successes + succeeded
            expected += read * free_success[usage.task]
    return Comparison(episodes, successes, expected / episodes if episodes else 0.0)


def free_success_rates(free_outcomes: Mapping[str, Collection[bool]], *, min_outcomes: int = 1) -> dict[str, float]:
    """Return the success rate of the free half by task, of tasks with at least ``min_outcomes`` outcomes."""
    return {
        task: sum(outcomes) / len(outcomes)
        for task, outcomes in free_outcomes.items()
        if len(outcomes) >= max(1, min_outcomes)
    }


def bad_records(
    entries: Iterable[Experience],
    free_outcomes: Mapping[str, Collection[bool]],
    *,
    min_uses: int,
    margin: float,
    asked_weight: float,
) -> dict[str, str]:
    """Return the ids of entries with a lower success rate than rollouts without experience, each with the reason.

    Args:
        entries: The bank.
        free_outcomes: Latest outcomes of the free half, by task.
        min_uses: Uses of an entry, and outcomes of a task's free half, needed to compare them; 0 disables the check.
        margin: How far below the free half's success rate an entry's must be.
        asked_weight: Weight of an episode that read the entry only through an answer; a use weighs 1.
    """
    if not min_uses:
        return {}
    free_success = free_success_rates(free_outcomes, min_outcomes=min_uses)
    reasons: dict[str, str] = {}
    for entry in entries:
        read, successes, free = compare_with_free(entry, free_success, asked_weight=asked_weight)
        if not entry.quarantined and read >= min_uses and successes / read < free - margin:
            reasons[entry.id] = f"{successes:g} of {read:g} successes, free half {free:.2f}"
    return reasons
