"""The scores of candidates compared with numbers calculated by hand, and what they do to many retrievals."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.algorithm.utility import gini
from verl_comprl.experience import Experience, TaskUsage
from verl_comprl.experience.retrieval.ranking import (
    evaluation_score,
    least_used,
    mean_success,
    positions,
    surviving,
    training_score,
)

NOW = 10_000.0


def entry(retrievals: int = 0, last: float = 0.0, uses: int = 0, successes: int = 0, id: str = "id") -> Experience:
    usage = (TaskUsage(task="task", uses=uses, successes=successes),) if uses else ()
    counters = {"retrievals": retrievals, "last_retrieved_at": last, "usage": usage}
    return Experience(id=id, title="title", content="content", **counters)


@pytest.mark.parametrize(
    ("position", "retrievals", "age", "score"),
    [
        (0, 0, 0, 1.0),
        (4, 0, 0, 0.75),
        (15, 0, 0, 0.0625),
        (0, 3, 400, 0.44548),  # 1 - 0.4 ln 4
        (0, 3, 300, 0.44548),  # not recent any more
        (0, 3, 299, -0.55452),
        (8, 1, 10, -0.77726),  # 0.5 - 0.4 ln 2 - 1
    ],
)
def test_scores_of_eq_6_in_a_pool_of_16(position: int, retrievals: int, age: float, score: float) -> None:
    last = NOW - age if retrievals else 0.0
    assert training_score(position, entry(retrievals, last), NOW) == pytest.approx(score, abs=1e-5)


def test_the_configured_pool_and_lambda_set_what_a_position_costs() -> None:
    assert training_score(3, entry(), NOW, pool=4) == 0.25
    assert training_score(3, entry(), NOW, pool=64) == pytest.approx(61 / 64)
    assert training_score(0, entry(9), NOW, lam=0) == 1.0
    assert training_score(0, entry(9, NOW), NOW, lam=0, recency=0) == 1.0


def retrieve_often(score, times: int, pool: int = 16) -> list[int]:
    counts = [0] * pool
    for _ in range(times):
        counts[max(range(pool), key=lambda position: score(position, counts[position]))] += 1
    return counts


def test_identical_queries_use_the_whole_pool_and_less_unevenly_than_with_unscaled_ranks() -> None:
    now = retrieve_often(lambda position, count: training_score(position, entry(count), NOW), 160)
    before = retrieve_often(lambda position, count: 1 - position - 0.4 * math.log1p(count), 160)
    assert min(now) > 0 and before.count(0) >= 11
    assert gini(before) > 0.9 and gini(now) < 0.5
    # The long run of the docstring: neighbours differ by a factor of 0.86, first and last by one of ten.
    many = retrieve_often(lambda position, count: training_score(position, entry(count), NOW), 20_000)
    assert many[1] / many[0] == pytest.approx(math.exp(-1 / 6.4), abs=0.01)
    assert many[15] / many[0] == pytest.approx(0.096, abs=0.005)


@given(st.lists(st.integers(0, 4), max_size=16))
def test_a_place_is_the_number_of_more_similar_candidates(tenths: list[int]) -> None:
    ordered = sorted((tenth / 10 for tenth in tenths), reverse=True)
    noisy = [value - 1e-8 * index for index, value in enumerate(ordered)]  # equal but for rounding
    assert positions(noisy) == [sum(other > value for other in ordered) for value in ordered]


def test_three_candidates_of_a_pool_of_16_take_turns() -> None:
    first = retrieve_often(lambda position, count: training_score(position, entry(count), NOW), 3, pool=3)
    assert first == [1, 1, 1]


def test_scores_of_an_evaluation() -> None:
    assert evaluation_score(0.6, entry()) == pytest.approx(0.18)  # never used: 1/2
    assert evaluation_score(0.6, entry(uses=8, successes=7)) == pytest.approx(0.36 * 0.8)
    assert evaluation_score(-0.2, entry(uses=8, successes=7)) == 0
    # An entry about something else does not win by its record, one about the same does.
    assert evaluation_score(0.6, entry(uses=8, successes=5)) > evaluation_score(0.45, entry(uses=8, successes=8))
    assert evaluation_score(0.6, entry(uses=8, successes=5)) < evaluation_score(0.58, entry(uses=8, successes=8))


def test_the_prior_is_the_success_of_all_episodes_that_read_a_candidate() -> None:
    assert mean_success([], 0.5) == mean_success([entry()], 0.5) == 0.5
    asked = TaskUsage(task="task", asked=4, asked_successes=2)
    used = [entry(uses=6, successes=1), entry(), entry().model_copy(update={"usage": (asked,)})]
    assert mean_success(used, 0.5) == 3 / 10 and mean_success(used, 0.0) == 2 / 8


def test_retrievals_do_not_matter_in_an_evaluation() -> None:
    assert evaluation_score(0.5, entry(40, NOW, 4, 2)) == evaluation_score(0.5, entry(0, 0, 4, 2))


@given(count=st.integers(1, 20), dropout=st.floats(0, 1), seed=st.integers(0, 99))
def test_dropout_leaves_at_least_one_candidate_in_order(count: int, dropout: float, seed: int) -> None:
    left = surviving(count, dropout, Random(seed))
    assert len(left) >= 1 and sorted(set(left)) == list(left) and set(left) <= set(range(count))


def test_without_dropout_no_candidate_is_left_out_and_nothing_is_drawn() -> None:
    random = Random(0)
    state = random.getstate()
    assert list(surviving(5, 0.0, random)) == [0, 1, 2, 3, 4]
    assert random.getstate() == state


def test_each_candidate_survives_with_its_probability() -> None:
    random = Random(0)
    kept = Counter(position for _ in range(2000) for position in surviving(8, 0.75, random))
    # All 8 drop out with probability 0.75^8 = 0.10, and then one stays: 0.25 + 0.1001 / 8 = 0.2625; 525 ± 20.
    assert set(kept) == set(range(8)) and all(425 < times < 625 for times in kept.values())
    only = Counter(tuple(surviving(4, 1.0, random)) for _ in range(400))
    assert set(only) == {(0,), (1,), (2,), (3,)}


def test_the_least_used_entries() -> None:
    entries = [entry(5, 0, 1, id="a"), entry(2, 0, 0, id="b"), entry(1, 0, 0, id="c"), entry(1, 0, 0, id="d")]
    assert [found.id for found in least_used(entries)] == ["c", "d"]
    assert [found.id for found in least_used(entries[:2])] == ["b"]
    assert least_used([]) == []
