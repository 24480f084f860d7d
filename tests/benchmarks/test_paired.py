"""Ratio of paired series, against numbers worked out by hand and the interval's coverage."""

from typing import Any

import numpy as np
import pytest

from benchmarks.paired import geometric_ratio, ratio_of_means


def test_a_constant_factor_has_no_interval_however_much_the_pairs_differ() -> None:
    reference = [1.0, 5.0, 2.0, 30.0]
    assert ratio_of_means([1.02 * value for value in reference], reference) == pytest.approx((1.02, 1.02, 1.02))


def test_the_ratio_is_that_of_the_means() -> None:
    ratio, low, high = ratio_of_means([1.0, 4.0], [2.0, 2.0])
    assert ratio == 1.25
    # Two pairs can be drawn as one of them twice: ratios .5 and 2 have a probability of a quarter each.
    assert (low, high) == (0.5, 2.0)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    covered = 0
    for trial in range(200):
        load = random.uniform(1, 3, 40)  # shared by both of a pair
        reference, values = load + random.normal(0, 0.1, 40), 1.05 * load + random.normal(0, 0.1, 40)
        _, low, high = ratio_of_means(values.tolist(), reference.tolist(), seed=trial)
        covered += low <= 1.05 <= high
        assert high - low < 0.1
    assert 180 <= covered <= 200


def test_the_geometric_ratio_of_three_pairs_has_the_interval_of_students_t() -> None:
    # Logarithms of the ratios: 0 and twice log 1.1, so mean 2/3 and standard deviation 1/sqrt(3) of it; t = 4.303.
    ratio, low, high = geometric_ratio([2.0, 1.1, 3.3], [2.0, 1.0, 3.0])
    assert ratio == pytest.approx(1.1 ** (2 / 3))
    assert (low, high) == pytest.approx((1.1 ** (2 / 3 - 4.303 / 3), 1.1 ** (2 / 3 + 4.303 / 3)), rel=1e-4)


def test_its_interval_covers_the_true_ratio_about_as_often_as_it_says_with_three_pairs() -> None:
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        load = random.uniform(1, 3, 3)
        _, low, high = geometric_ratio((1.05 * load * np.exp(random.normal(0, 0.02, 3))).tolist(), load.tolist())
        covered += low <= 1.05 <= high
    assert 930 <= covered <= 970


@pytest.mark.parametrize("function", [ratio_of_means, geometric_ratio])
@pytest.mark.parametrize(("values", "reference"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_what_are_no_pairs_is_refused(function: Any, values: list[float], reference: list[float]) -> None:
    with pytest.raises(ValueError, match="are no pairs"):
        function(values, reference)
