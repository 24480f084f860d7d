"""The ranking of Eq. 6 compared with scores calculated by hand."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.experience.retrieval.ranking import diversified_rank

NOW = 10_000.0


def rank(ids: list[str], counts: list[int], times: list[float], **settings: Any) -> list[str]:
    history = dict(zip(ids, zip(counts, times, strict=True), strict=True))
    return diversified_rank(ids, history.__getitem__, NOW, **settings)


def test_without_history_the_order_of_similarity_stays() -> None:
    assert rank(["a", "b", "c"], [0, 0, 0], [0, 0, 0], k=3) == ["a", "b", "c"]


def test_scores_by_hand() -> None:
    # a: 1 - 0.4 ln 12 = 0.006 (old retrievals); b: 0; c: -1 - 0 ; with one more retrieval a: 1 - 0.4 ln 13 = -0.026.
    ages = [NOW - 400, 0, 0]
    assert 1 - 0.4 * math.log(12) > 0 > 1 - 0.4 * math.log(13)
    assert rank(["a", "b", "c"], [11, 0, 0], ages, k=3) == ["a", "b", "c"]
    assert rank(["a", "b", "c"], [12, 0, 0], ages, k=3) == ["b", "a", "c"]


def test_a_recent_retrieval_costs_one() -> None:
    # a: 1 - 0.4 ln 2 - 1 = -0.277; b: 0; c: -1.
    assert rank(["a", "b", "c"], [1, 0, 0], [NOW - 299, 0, 0], k=3) == ["b", "a", "c"]
    # a: 1 - 0.4 ln 2 = 0.723, not recent any more.
    assert rank(["a", "b", "c"], [1, 0, 0], [NOW - 300, 0, 0]) == ["a"]


def test_lambda_and_ties() -> None:
    # λ = 0: recency alone brings a to 0, level with b; the tie goes to the more similar one.
    assert rank(["a", "b"], [50, 0], [NOW, 0], lam=0) == ["a"]
    assert rank(["a", "b"], [50, 0], [NOW, 0], lam=0.01) == ["b"]


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, NOW)), max_size=12), st.integers(1, 4), st.floats(0, 3))
def test_stopping_early_changes_nothing(history: list[tuple[int, float]], k: int, lam: float) -> None:
    ids = [str(n) for n in range(len(history))]
    scores = [1 - n - lam * math.log1p(c) - (t > 0 and NOW - t < 300) for n, (c, t) in enumerate(history)]
    everything = sorted(range(len(ids)), key=lambda n: (-scores[n], n))
    assert rank(ids, [c for c, _ in history], [t for _, t in history], k=k, lam=lam) == [ids[n] for n in everything[:k]]


def test_small_pools() -> None:
    assert rank([], [], []) == []
    assert rank(["a"], [1000], [NOW], k=5) == ["a"]
