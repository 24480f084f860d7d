"""Ranking of candidate entries (Eq. 6 of the paper): similarity rank, minus penalties for frequency and recency."""

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
        history: Returns the retrieval count ``c(m)`` of an id, and the time of its last retrieval in seconds, 0 for
            never.
        now: Current time on the same clock.
        lam: ``λ``, the weight of the counts.
        recency: Age in seconds below which a retrieval is recent.
        k: Number of ids wanted.

    Returns:
        The best ``k`` ids, best first; fewer if the pool is smaller.
    """
    best: list[tuple[float, int]] = []
    for position, id in enumerate(candidates):
        if len(best) == k and 1 - position <= best[-1][0]:
            break  # penalties only lower a score: no later candidate can reach a better one
        count, last_retrieved_at = history(id)
        recent = last_retrieved_at > 0 and now - last_retrieved_at < recency
        score = 1 - position - lam * math.log1p(count) - recent
        if len(best) < k or score > best[-1][0]:
            best.append((score, -position))
            best.sort(reverse=True)
            del best[k:]
    return [candidates[-position] for _, position in best]
