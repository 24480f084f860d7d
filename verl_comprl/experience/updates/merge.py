"""Plans the periodic merge: which entries one call of the extractor reads, and in which order.

Owns groups and chunks, as pure functions. The extractor is called by the manager, operations are applied by ``bank``.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from verl_comprl.experience.schema import Experience

T = TypeVar("T")

_REBUILD_EVERY = 64
"""Chunks after which the covered rows are dropped from the matrix: copying it for every chunk would take longer."""

_SHORTEST_RUN = 4
"""Chunks in a run that is merged apart from others. The first chunk of a run reads no output of another."""


def merge_groups(entries: Iterable[Experience], scope: str) -> list[list[Experience]]:
    """Return the entries that are merged together: those that one query may find.

    An entry of several tasks or environments can be found by queries of each, but belongs to one group, that of its
    first: in two groups, two calls would decide on it at the same time. Quarantined entries are left out: merged with
    others, their text would be retrieved again.

    Args:
        entries: The bank, oldest first.
        scope: ``comprl.bank.scope``.
    """
    groups: dict[tuple[str, ...], list[Experience]] = {}
    for entry in entries:
        if not entry.quarantined:
            names = {"task": entry.tasks, "environment": entry.environments}.get(scope, ())
            groups.setdefault(names[:1], []).append(entry)
    return list(groups.values())


def neighbour_chunks(vectors: np.ndarray, size: int) -> list[list[int]]:
    """Split rows into chunks of neighbours, each row in one chunk, successive chunks near to one another.

    A chunk is one row with the ``size - 1`` rows most similar to it of those that are left; it is in order of the rows.
    The first begins with row 0, each further one with the row that is most similar to the beginning of the one before.
    So what does not fit into a chunk comes next: a call of the merge reads its chunk and what was left of the previous
    one. 20,000 rows of 384 columns take about 2 s of one core.

    Args:
        vectors: Shape ``(count, dimension)``, L2-normalised.
        size: Rows in a chunk; the last one may have fewer.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    rows, left = vectors, np.arange(len(vectors))
    covered = np.zeros(len(left), bool)
    chunks: list[list[int]] = []
    seed = 0
    while not covered.all():
        similarity = np.where(covered, -np.inf, rows @ rows[seed])
        similarity[seed] = np.inf  # equal rows, and rounding: the seed itself must be in its chunk
        count = min(size, int((~covered).sum()))
        chosen = np.argpartition(-similarity, count - 1)[:count]
        chunks.append(sorted(left[chosen].tolist()))
        covered[chosen] = True
        similarity[chosen] = -np.inf
        seed = int(similarity.argmax())
        if len(chunks) % _REBUILD_EVERY == 0:
            seed -= int(covered[:seed].sum())
            rows, left, covered = rows[~covered], left[~covered], covered[~covered]
    return chunks


def split_into_runs(groups: Sequence[Sequence[T]], parts: int) -> list[list[T]]:
    """Cut the chunks of groups into runs of successive ones, about as many as ``parts`` of equal length.

    A run ends with its group, and has at least ``_SHORTEST_RUN`` chunks if the group has.
    """
    longest = max(_SHORTEST_RUN, -(-sum(map(len, groups)) // parts))
    return [list(group[at : at + longest]) for group in groups for at in range(0, len(group), longest)]
