"""Wilson confidence interval of a success rate."""

from math import sqrt


def wilson_interval(successes: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion: the ``p`` with ``|p̂ − p| ≤ z·√(p(1−p)/n)``.

    Args:
        successes: Number of successes, between 0 and ``count``.
        count: Number of trials ``n``, at least 1.
        z: Quantile of the normal distribution; the default gives 95 %.

    Raises:
        ValueError: If ``count`` or ``successes`` is out of range.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"successes must be between 0 and count ≥ 1, got {successes} of {count}")
    rate = successes / count
    centre = rate + z**2 / (2 * count)
    spread = z * sqrt(rate * (1 - rate) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
