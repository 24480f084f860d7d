"""Means over seeds and their intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.curves.bands import by_step, half_interval, mean_band, moving_mean


def test_the_interval_is_student_s() -> None:
    # A table of Student's t has 2.776 for 4 degrees of freedom; the standard deviation of 1..5 is 1.5811.
    assert half_interval([1, 2, 3, 4, 5]) == pytest.approx(2.776 * 1.5811 / math.sqrt(5), rel=1e-3)
    assert math.isnan(half_interval([1.0]))


def test_a_band_ends_where_too_few_seeds_are_left() -> None:
    seeds = [{0: 1.0, 1: 2.0, 2: 3.0, 3: 1.0}, {0: 3.0, 1: 4.0, 2: 9.0}, {0: 2.0, 1: 3.0}]
    band = mean_band(by_step(seeds))
    assert band.steps == [0, 1, 2] and band.means == [2.0, 3.0, 6.0] and band.has_interval
    assert math.isnan(band.low[2])  # of two seeds
    # Table: t = 4.303 for 2 degrees of freedom; the standard deviation is 1.
    assert band.high[0] == pytest.approx(2 + 4.303 / math.sqrt(3), rel=1e-3)
    assert mean_band(by_step(seeds[1:])).steps == [0, 1, 2] and not mean_band(by_step(seeds[1:])).has_interval
    assert mean_band(by_step([{0: 1.0, 1: 1.0}] * 3 + [{0: 2.0}] * 4)).steps == [0, 1]
    assert mean_band(by_step([{0: 1.0, 1: 1.0}] * 2 + [{0: 2.0}] * 5)).steps == [0]
    assert not mean_band(by_step(seeds[:1])).has_interval
    assert mean_band({}).steps == []


@given(st.dictionaries(st.integers(0, 99), st.floats(-9, 9), min_size=1), st.integers(1, 20))
def test_a_moving_mean_stays_within_its_values(series: dict[int, float], width: int) -> None:
    smooth = moving_mean(series, width)
    assert list(smooth) == sorted(series)
    assert all(min(series.values()) - 1e-9 <= value <= max(series.values()) + 1e-9 for value in smooth.values())


def test_a_moving_mean_is_centred() -> None:
    assert moving_mean({1: 0.0, 2: 3.0, 4: 6.0, 5: 0.0}, 3) == {1: 1.5, 2: 3.0, 4: 3.0, 5: 3.0}
    assert moving_mean({1: 2.0, 2: 4.0}, 1) == {1: 2.0, 2: 4.0}


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 10])
def test_a_moving_mean_is_over_as_many_values_as_it_says(width: int) -> None:
    """One value among zeros is in the means of ``width`` steps, with the weight of one of ``width``."""
    smooth = moving_mean({step: float(step == 20) for step in range(40)}, width)
    near = [step for step, value in smooth.items() if value]
    assert len(near) == width and {smooth[step] for step in near} == {1 / width}
    assert near[0] + near[-1] in (40, 41)  # around it
