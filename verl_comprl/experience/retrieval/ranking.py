"""Scores of the candidates of a query: Eq. 6 of the paper in training, similarity and success in evaluation."""

import math
from collections.abc import Iterable, Sequence
from random import Random

from verl_comprl.experience.schema import Experience

_SAME = 1e-6
"""Cosine similarities that differ by less are equal: rounding depends on the order of a sum."""


def positions(similarities: Sequence[float]) -> list[int]:
    """Return the place of each candidate by similarity, from 0: the number of candidates that are more similar.

    Equally similar ones share a place, so that their counts decide between them and not the order of the store. Entries
    that are embedded by their titles are often equally similar.

    Args:
        similarities: In descending order.
    """
    places: list[int] = []
    for index, similarity in enumerate(similarities):
        same = index > 0 and similarities[index - 1] - similarity < _SAME
        places.append(places[-1] if same else index)
    return places


def training_score(
    position: int, entry: Experience, now: float, *, pool: int = 16, lam: float = 0.4, recency: float = 300.0
) -> float:
    """Return ``s(m) = s_rank(m) - λ·log(1 + c(m)) - 1[recent(m)]`` (Eq. 6).

    ``s_rank`` is ``1 - position / pool``: 1 for the most similar candidate, close to 0 for the last of a full pool. The
    paper does not say how ranks become scores; its code lets one position cost as much as a recent retrieval or as
    eleven older ones, so that a few entries get nearly all retrievals. Here the counts can reach every candidate: in
    the long run a candidate is retrieved ``exp(-1 / (λ·pool))`` times as often as the one before it (λ=0.4, pool=16:
    0.86; the last of 16 gets a tenth of the first).

    Divided by the configured size of the pool, not by the number of candidates: a position costs the same whatever the
    bank holds. Three candidates in a pool of 16 score 1, 0.94 and 0.88, so that they take turns. Divided by three, the
    scores 1, 0.67 and 0.33 would hold the last one back for seven retrievals, while little is known about any of them.

    Args:
        position: Place among the candidates by similarity, from 0, see ``positions``.
        entry: The candidate, with its retrieval count ``c(m)`` and the time of its last retrieval (0 for never).
        now: Current time on the same clock.
        pool: Number of candidates that a query may have.
        lam: ``λ``, the weight of the counts.
        recency: Age in seconds below which a retrieval is recent.
    """
    recent = entry.last_retrieved_at > 0 and now - entry.last_retrieved_at < recency
    return 1 - position / pool - lam * math.log1p(entry.retrievals) - recent


def mean_success(entries: Iterable[Experience], asked_weight: float) -> float:
    """Return the expected success with an entry of which no more is known than that it is one of ``entries``."""
    counts = [usage.weighted(asked_weight) for entry in entries for usage in entry.usage]
    return (sum(count[1] for count in counts) + 1) / (sum(count[0] for count in counts) + 2)


def evaluation_score(similarity: float, entry: Experience, *, prior: float = 0.5, asked_weight: float = 0.5) -> float:
    """Return ``similarity² · posterior success``: what the entry is worth for this query, as far as is known.

    A product, so that neither the scale of the embedder nor the level of success matters, only ratios: an entry that
    succeeds twice as often is preferred down to 0.71 of the similarity. Ranks would not do, since the second most
    similar candidate may be about as similar as the first or about something else.

    Args:
        similarity: Cosine similarity of query and entry; below 0 counts as 0.
        entry: The candidate, with its uses and successes.
        prior: Expected success of a candidate that was never used: that of the other candidates, since 0.5 would put
            every unused text before the best one as long as few episodes succeed, and after the worst one later on.
        asked_weight: Weight of an episode that read the entry only through an answer.
    """
    return max(similarity, 0.0) ** 2 * entry.posterior(asked_weight, prior)


def surviving(count: int, dropout: float, random: Random) -> Sequence[int]:
    """Return the positions of the candidates that are left after dropout, in order: at least one.

    Args:
        count: Number of candidates.
        dropout: Probability with which each is left out; if all would be, one at random stays.
        random: Source of chance; not used without dropout.
    """
    if not dropout or not count:
        return range(count)
    return [position for position in range(count) if random.random() >= dropout] or [random.randrange(count)]


def least_used(entries: Sequence[Experience]) -> list[Experience]:
    """Return the entries with the fewest uses, and of those the ones with the fewest retrievals.

    Retrievals matter because a use is counted only when its episode ends.
    """
    counts = [(entry.uses, entry.retrievals) for entry in entries]
    fewest = min(counts, default=None)
    return [entry for entry, count in zip(entries, counts, strict=True) if count == fewest]
