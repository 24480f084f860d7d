"""Detects near-copies of entries, and compares the success with an entry to that without experience.

Owns the criteria. Whether they are applied, and what follows, is decided in ``bank``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore, SearchRequest
from verl_comprl.experience.updates.planning import INHERITED

_REASON = re.compile(r"\S+ of \S+ successes, free half \d\.\d\d")


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
    """Successes with an entry, and success without experience of the same tasks in the same steps."""

    episodes: float
    """Episodes that read the entry and can be compared, those of answers weighted."""
    successes: float
    free_success: float
    """Success rate of the free half in these tasks and steps, with these episodes as weights."""


def compare_with_free(entry: Experience) -> Comparison:
    """Compare an entry with no experience, over the episodes of which both sides are known."""
    episodes = sum(usage.compared for usage in entry.usage)
    successes = sum(usage.compared_successes for usage in entry.usage)
    expected = sum(usage.free_successes for usage in entry.usage)
    return Comparison(episodes, successes, expected / episodes if episodes else 0.0)


def is_by_hand(reason: str) -> bool:
    """Return whether somebody has quarantined an entry: not the run, for its record or for that of a replaced one."""
    return bool(reason) and not reason.startswith(INHERITED) and not _REASON.fullmatch(reason)


def bad_records(entries: Iterable[Experience], *, min_uses: int, margin: float) -> dict[str, str]:
    """Return the ids of entries with a lower success rate than rollouts without experience, each with the reason.

    Args:
        entries: The bank.
        min_uses: Episodes of an entry needed to compare it, those of answers weighted; 0 disables the check.
        margin: How far below the free half's success rate an entry's must be.
    """
    reasons: dict[str, str] = {}
    for entry in entries if min_uses else ():
        read, successes, free = compare_with_free(entry)
        if not entry.quarantined and read >= min_uses and successes / read < free - margin:
            reasons[entry.id] = f"{successes:g} of {read:g} successes, free half {free:.2f}"
    return reasons
