"""Means over seeds with their 95 % intervals, by step."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t

from verl_comprl.curves.run import Series

ENOUGH = 3
"""Seeds from which on an interval says something: of two, it is 12.7 standard errors wide to either side."""


@dataclass(frozen=True, slots=True)
class Band:
    """A mean over seeds and the bounds of its interval, by step; the bounds are NaN where it has none."""

    steps: list[int]
    means: list[float]
    low: list[float]
    high: list[float]

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval at any step."""
        return any(not math.isnan(bound) for bound in self.low)


def half_interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % t-interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def mean_band(values: Mapping[int, Sequence[float]]) -> Band:
    """Return mean and interval of the values at each step that half of the seeds, or three of many, have reached.

    Beyond that the mean would be that of the few seeds which are ahead.
    """
    seeds = max(map(len, values.values()), default=0)
    steps = sorted(step for step, found in values.items() if len(found) >= min(ENOUGH, -(-seeds // 2)))
    means = [statistics.fmean(values[step]) for step in steps]
    halves = [half_interval(values[step]) if len(values[step]) >= ENOUGH else math.nan for step in steps]
    low = [mean - half for mean, half in zip(means, halves, strict=True)]
    high = [mean + half for mean, half in zip(means, halves, strict=True)]
    return Band(steps, means, low, high)


def by_step(seeds: Iterable[Series]) -> dict[int, list[float]]:
    """Return the values of all seeds at each step."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for series in seeds:
        for step, value in series.items():
            values[step].append(value)
    return dict(values)


def moving_mean(series: Series, width: int) -> Series:
    """Return the means of ``width`` values around each, of an even number one more before it; fewer at the ends."""
    steps = sorted(series)
    before, after = width // 2, (width + 1) // 2
    return {
        step: statistics.fmean(series[near] for near in steps[max(0, index - before) : index + after])
        for index, step in enumerate(steps)
    }
