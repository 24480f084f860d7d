"""Judges a long run: a line for each measure that grows.

Growth is judged between two halves of the steps after the start. A queue may vary, so its means are compared; what was
left behind never ends, so the smallest count of a half, when most else has ended, has all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

FLAT = 0.05
"""Change of a process's memory that is none."""

GROWTH, SLACK = 1.25, 2.0
"""A mean may be so many times that of the half before, and so much more, without having grown. One that grows evenly
from 0 is 1.9 times as large in steps 125 to 200 as in 50 to 125."""

Series = Sequence[tuple[int, float]]
"""Steps and values."""


def not_flat(process: str, mean: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each measure of a process that is not flat.

    Args:
        process: Its name.
        mean: Means of the early and the late window: ``early megabytes`` and so on.
    """
    before, after = mean["early megabytes"], mean["late megabytes"]
    if abs(after / before - 1) > FLAT:
        yield f"{process}: memory {before:.0f} → {after:.0f} MB ({after / before - 1:+.1%})"
    for what in ("threads", "files"):
        before, after = mean[f"early {what}"], mean[f"late {what}"]
        if after > before * (1 + FLAT) + 1:
            yield f"{process}: {what} {before:.0f} → {after:.0f}"


def grown(name: str, values: Series, first: int) -> Iterator[str]:
    """Yield a line if the mean has grown, or if there is none.

    Args:
        name: What the values are.
        values: By step.
        first: Step from which on it should be level.
    """
    halves = _halves(values, first)
    if halves is None:
        yield f"{name}: not measured"
    elif fmean(halves[1]) > GROWTH * fmean(halves[0]) + SLACK:
        yield f"{name}: mean {fmean(halves[0]):.1f} → {fmean(halves[1]):.1f}"


def leaked(name: str, values: Series, first: int) -> Iterator[str]:
    """Yield a line if the smallest value has grown, or if there is none; arguments as of :func:`grown`."""
    halves = _halves(values, first)
    if halves is None:
        yield f"{name}: not measured"
    elif min(halves[1]) > min(halves[0]):
        yield f"{name}: never below {min(halves[0]):.0f} → {min(halves[1]):.0f}"


def _halves(values: Series, first: int) -> tuple[list[float], list[float]] | None:
    """Return the values of both halves of the steps from ``first`` on; None if there are not two."""
    since = [(step, value) for step, value in values if step >= first]
    if not since:
        return None
    middle = (first + since[-1][0] + 1) / 2
    early, late = [v for step, v in since if step < middle], [v for step, v in since if step >= middle]
    return (early, late) if early and late else None
