"""Ratio of paired series, against numbers worked out by hand and the interval's coverage."""

import numpy as np
import pytest

from benchmarks.paired import ratio_of_means


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


@pytest.mark.parametrize(("values", "reference"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_what_are_no_pairs_is_refused(values: list[float], reference: list[float]) -> None:
    with pytest.raises(ValueError, match="are no pairs"):
        ratio_of_means(values, reference)
