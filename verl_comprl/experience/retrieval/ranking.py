"""The ranking of Eq. 6: similarity, how often an entry was retrieved, and when last. A pure function."""

import math
from collections.abc import Callable, Sequence


def diversified_rank(
    candidates: Sequence[str],
    history: Callable[[str], tuple[int, float]],
    now: float,
    *,
    lam: float = 0.4,
    recency: float = 300.0,
    k: int = 1,
) -> list[str]:
    """Rank an oversampled pool by ``s(m) = s_rank(m) - λ·log(1 + c(m)) - 1[recent(m)]`` (Eq. 6).

    ``s_rank`` is ``1 - position``: the most similar candidate scores 1, and one position is worth as much as one
    recency penalty, whatever the size of the pool. Ties keep the order of similarity.

    Args:
        candidates: Ids, most similar first.
        history: Of an id, ``c(m)``, how often it was retrieved, and when last, in seconds; 0 for never.
        now: The time, in the same seconds.
        lam: ``λ``, the weight of the counts.
        recency: Age in seconds below which a retrieval is recent.
        k: Number of ids wanted.

    Returns:
        The best ``k`` ids, best first; fewer if the pool is smaller.
    """
    best: list[tuple[float, int]] = []
    for position, id in enumerate(candidates):
        if len(best) == k and 1 - position <= best[-1][0]:
            break  # the terms only lower a score: nobody further down can do better
        count, last_retrieved_at = history(id)
        recent = last_retrieved_at > 0 and now - last_retrieved_at < recency
        score = 1 - position - lam * math.log1p(count) - recent
        if len(best) < k or score > best[-1][0]:
            best.append((score, -position))
            best.sort(reverse=True)
            del best[k:]
    return [candidates[-position] for _, position in best]
