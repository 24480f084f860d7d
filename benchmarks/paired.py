"""Ratio of two paired series with an interval: by the bootstrap, or for a few pairs by Student's t."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

DRAWS = 10_000


def ratio_of_means(values: Sequence[float], reference: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Return mean(values) / mean(reference) and its 95 % percentile interval from resampled pairs.

    Pairs are drawn together, so what both of a pair share (prompts, load of the machine at that time) does not widen
    the interval.

    Args:
        values: One for each pair.
        reference: The other of each pair, in the same order; positive.
        seed: Of the resampling.

    Raises:
        ValueError: If there are fewer than two pairs, or the series differ in length.
    """
    _check(values, reference)
    first, second = np.asarray(values, float), np.asarray(reference, float)
    chosen = np.random.default_rng(seed).integers(0, len(first), (DRAWS, len(first)))
    ratios = first[chosen].mean(axis=1) / second[chosen].mean(axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(first.mean() / second.mean()), float(low), float(high)


def geometric_ratio(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the pairs' ratios, and its 95 % interval by Student's t of their logarithms.

    For a few pairs, of which the bootstrap's interval is little more than the range of what was measured.

    Args:
        values: One for each pair; positive.
        reference: The other of each pair, in the same order; positive.

    Raises:
        ValueError: If there are fewer than two pairs, or the series differ in length.
    """
    _check(values, reference)
    logs = np.log(np.asarray(values, float) / np.asarray(reference, float))
    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    ratio, low, high = np.exp(logs.mean() + half * np.array([0, -1, 1]))
    return float(ratio), float(low), float(high)


def _check(values: Sequence[float], reference: Sequence[float]) -> None:
    if len(values) != len(reference) or len(values) < 2:
        raise ValueError(
            f"{len(values)} values and {len(reference)} of the reference are no pairs; at least 2 are needed"
        )


def show(ratio: tuple[float, float, float]) -> str:
    """Return a ratio and its interval as text."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*ratio)
