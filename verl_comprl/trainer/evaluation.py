"""Evaluation metrics per task and on average, with experience and without, with confidence intervals."""

from collections.abc import Sequence

import numpy as np

from verl_comprl.algorithm.interval import pooled_interval

ARMS = ("with", "without")
_COLUMNS: tuple[str, ...] = (
    "slot_guided",
    "task_number",
    "success",
    "score",
    "actions",
    "invalid_actions",
    "tool_calls",
    "degraded",
)

Episodes = list[dict[str, float]]


def evaluation_metrics(data_sources: Sequence[str], infos: dict[str, list]) -> dict[str, float]:
    """Return the measures of each task and arm, and their averages over tasks.

    ``comprl/eval/<task>/<measure>_<arm>`` and ``comprl/eval/<measure>_<arm>``; success has a Wilson interval,
    ``success_<arm>_low`` and ``…_high``, for which several episodes of one instance count less than as many of
    different ones. The averages' interval and numbers of episodes and instances are those of all tasks together.

    Args:
        data_sources: Task of each evaluated episode.
        infos: Columns of episode details, aligned with ``data_sources``; ``None`` where an episode failed.
    """
    columns = [infos.get(name, []) for name in _COLUMNS]
    groups: dict[tuple[str, str], Episodes] = {}
    for task, *values in zip(data_sources, *columns, strict=False):
        if None not in values:
            episode = dict(zip(_COLUMNS, values, strict=True))
            groups.setdefault((task, "with" if episode["slot_guided"] else "without"), []).append(episode)
    result: dict[str, float] = {}
    for arm in ARMS:
        by_task = {task: episodes for (task, of_arm), episodes in groups.items() if of_arm == arm}
        measured = {task: _measures(episodes) for task, episodes in by_task.items()}
        for task, episodes in by_task.items():
            values = measured[task] | _pooled(episodes)
            result |= {f"comprl/eval/{task}/{_named(name, arm)}": value for name, value in values.items()}
        if measured:
            names = next(iter(measured.values()))
            average = {name: float(np.mean([values[name] for values in measured.values()])) for name in names}
            average |= _pooled([episode for episodes in by_task.values() for episode in episodes])
            result |= {f"comprl/eval/{_named(name, arm)}": value for name, value in average.items()}
    return result


def _named(measure: str, arm: str) -> str:
    name, _, bound = measure.partition(":")
    return f"{name}_{arm}_{bound}" if bound else f"{name}_{arm}"


def _measures(episodes: Episodes) -> dict[str, float]:
    def mean(name: str) -> float:
        return float(np.mean([episode[name] for episode in episodes]))

    actions = sum(episode["actions"] for episode in episodes)
    invalid = sum(episode["invalid_actions"] for episode in episodes)
    means = {name: mean(name) for name in ("success", "score", "actions", "tool_calls", "degraded")}
    return means | {"invalid_rate": invalid / actions if actions else 0.0}


def _pooled(episodes: Episodes) -> dict[str, float]:
    """Return what is counted over episodes of several tasks together, not averaged over tasks."""
    outcomes = [(episode["task_number"], episode["success"]) for episode in episodes]
    low, high = pooled_interval(outcomes)
    instances = len({number for number, _ in outcomes})
    return {"success:low": low, "success:high": high, "episodes": float(len(episodes)), "instances": float(instances)}
