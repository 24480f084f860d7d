"""Wilson confidence interval of a success rate, also of tasks that were played several times."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any


def wilson_interval(successes: float, count: float, z: float = 1.959964) -> tuple[float, float]:
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


def effective_count(outcomes: Iterable[tuple[Hashable, float]], weights: Mapping[Any, float] | None = None) -> float:
    """Return the number of independent trials that tell as much as these, some of which are of the same task.

    Between the number of tasks (a task always ends the same way, so that playing it again tells nothing) and the number
    of trials (tasks do not differ): ``p(1−p)`` divided by the variance of ``p̂`` between tasks. Weights reduce it by
    Kish's factor ``(Σw)² / (n·Σw²)`` over the trials: a mean to which few of them contribute most tells less.

    Args:
        outcomes: Task and success, 0 or 1, of each trial; at least one.
        weights: Of each task, which its trials share; None if every trial counts once.
    """
    by_task: defaultdict[Hashable, list[float]] = defaultdict(list)
    for task, success in outcomes:
        by_task[task].append(success)
    found = _unweighted(list(by_task.values()))
    if weights is None:
        return found
    total = sum(weights[task] for task in by_task)
    squares = sum(weights[task] ** 2 / len(trials) for task, trials in by_task.items())
    return max(1.0, found * total**2 / (squares * sum(map(len, by_task.values()))))


def _unweighted(by_task: Sequence[Sequence[float]]) -> float:
    tasks, count = len(by_task), sum(map(len, by_task))
    rate = sum(map(sum, by_task)) / count
    if rate in (0, 1) or tasks == 1:
        return tasks
    spread = sum((sum(trials) - rate * len(trials)) ** 2 for trials in by_task) * tasks / (tasks - 1)
    return max(tasks, count**2 * rate * (1 - rate) / max(spread, count * rate * (1 - rate)))


def pooled_interval(
    outcomes: Iterable[tuple[Hashable, float]],
    rate: float | None = None,
    weights: Mapping[Any, float] | None = None,
) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the success of trials some of which are of the same task.

    Args:
        outcomes: Task and success, 0 or 1, of each trial; at least one.
        rate: Success to give the interval of, if it weights the trials otherwise; None for their mean.
        weights: Of each task in ``rate``; None if every trial counts once.
    """
    outcomes = list(outcomes)
    count = effective_count(outcomes, weights)
    rate = sum(success for _, success in outcomes) / len(outcomes) if rate is None else rate
    return wilson_interval(min(rate * count, count), count)
