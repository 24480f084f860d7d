"""Ratio of two paired series with a bootstrap interval."""

from collections.abc import Sequence

import numpy as np

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
    if len(values) != len(reference) or len(values) < 2:
        raise ValueError(
            f"{len(values)} values and {len(reference)} of the reference are no pairs; at least 2 are needed"
        )
    first, second = np.asarray(values, float), np.asarray(reference, float)
    chosen = np.random.default_rng(seed).integers(0, len(first), (DRAWS, len(first)))
    ratios = first[chosen].mean(axis=1) / second[chosen].mean(axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(first.mean() / second.mean()), float(low), float(high)


def show(ratio: tuple[float, float, float]) -> str:
    """Return a ratio and its interval as text."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*ratio)
