"""The Wilson interval against its definition and against numbers worked out by hand."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.algorithm.interval import effective_count, pooled_interval, wilson_interval


def test_by_hand() -> None:
    # z = 2, 8 of 16: centre (0.5 + 4/32) / (1 + 4/16) = 0.5, spread 2·√(0.25/16 + 4/1024) / 1.25 = 0.22361
    assert wilson_interval(8, 16, z=2) == pytest.approx((0.276393, 0.723607), abs=1e-6)
    # 0 of n: from 0 to z² / (n + z²)
    assert wilson_interval(0, 12, z=2) == pytest.approx((0, 4 / 16))
    assert wilson_interval(12, 12, z=2) == pytest.approx((12 / 16, 1))


@given(st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_bounds_meet_the_definition(case: tuple[int, int]) -> None:
    successes, count = case
    rate = successes / count
    for bound in wilson_interval(successes, count):
        assert abs(rate - bound) == pytest.approx(1.959964 * sqrt(bound * (1 - bound) / count), abs=1e-6)


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (-1, 5), (6, 5)])
def test_counts_out_of_range_are_refused(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {count}"):
        wilson_interval(successes, count)


def test_trials_of_one_task_by_hand() -> None:
    assert effective_count([(n, n % 2) for n in range(10)]) == 10  # each its own task
    assert effective_count([(n % 5, n % 5 < 2) for n in range(20)]) == 5  # a task always ends alike
    assert effective_count([(n % 5, n // 5 % 2) for n in range(20)]) == 20  # all tasks succeed half of the time
    assert effective_count([(n % 5, 1) for n in range(20)]) == 5  # nothing is known about how tasks vary
    # Successes 4, 3, 1, 0 of 4 each: p = 1/2, deviations 2, 1, 1, 2, spread 10 · 4/3, 16² / 4 / (40/3) = 4.8
    trials = [(task, float(n < wins)) for task, wins in enumerate((4, 3, 1, 0)) for n in range(4)]
    assert effective_count(trials) == pytest.approx(4.8)


def test_weights_leave_fewer_trials_by_hand() -> None:
    # Of 4.8, see above, with Kish's factor (3 + 1 + 1 + 1)² / (16 · (9 + 1 + 1 + 1)/4) = 36/48.
    trials = [(task, float(n < wins)) for task, wins in enumerate((4, 3, 1, 0)) for n in range(4)]
    assert effective_count(trials, {0: 3, 1: 1, 2: 1, 3: 1}) == pytest.approx(3.6)
    assert pooled_interval(trials, 2 / 3, {0: 3, 1: 1, 2: 1, 3: 1}) == pytest.approx(wilson_interval(2.4, 3.6))
    assert effective_count(trials, dict.fromkeys(range(4), 7)) == pytest.approx(4.8)
    assert effective_count([("a", 1), *[("b", 0)] * 100], {"a": 100, "b": 1}) == pytest.approx(1)  # not less than one


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_they_count_as_more_than_the_tasks_and_less_than_the_trials(trials: list[tuple[int, bool]]) -> None:
    assert len(dict(trials)) <= effective_count(trials) <= len(trials) + 1e-9


def test_an_interval_counts_trials_as_they_tell() -> None:
    trials = [(task, float(n < wins)) for task, wins in enumerate((4, 3, 1, 0)) for n in range(4)]  # 4.8, see above
    assert pooled_interval(trials) == pytest.approx(wilson_interval(2.4, 4.8))
    assert pooled_interval(trials, 0.25) == pytest.approx(wilson_interval(1.2, 4.8))
    assert pooled_interval([("a", 1), ("b", 1)], 1 + 1e-16) == wilson_interval(2, 2)
