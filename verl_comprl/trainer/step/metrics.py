"""Metrics of an actor step, for rollouts with experience and without, and of an update of the extractor."""

from collections.abc import Sequence

import numpy as np

from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.generation_record import CallKind
from verl_comprl.rollout.episode import TIMERS, TOKENS

Details = dict[str, float]


def _mean(rows: Sequence[Details], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def rollout_metrics(details: Sequence[Details], tasks: Sequence[str]) -> dict[str, float]:
    """Return success, length, tool use, time and tokens of the guided and the free half, and the gap in success.

    Args:
        details: Results of each episode.
        tasks: Task of each episode; if there are several, the metrics are also returned per task.
    """
    result = _half_metrics(details, "comprl")
    names = sorted(set(tasks))
    for name in names if len(names) > 1 else []:
        rows = [row for row, task in zip(details, tasks, strict=True) if task == name]
        result |= _half_metrics(rows, f"comprl/task/{name}")
        # With an asynchronous trainer the shares of the tasks need not be equal.
        result[f"comprl/task/{name}/rollouts"] = float(len(rows))
    for key in ("degraded", "unreported"):
        result[f"comprl/{key}"] = float(sum(row[key] for row in details))
    return result | _cost_metrics(details)


_COSTS = (*(f"seconds_{part}" for part in TIMERS), *(f"tokens_{part}" for part in TOKENS))


def _cost_metrics(details: Sequence[Details]) -> dict[str, float]:
    """Return mean and 95th percentile of each half's seconds and tokens per episode."""
    # verl combines the updates of a step by name: no part of these names may say min, max, sum or total.
    result: dict[str, float] = {}
    for half, wanted in (("guided", True), ("free", False)):
        rows = [row for row in details if bool(row["guided"]) == wanted]
        for key in _COSTS if rows else ():
            values = [row[key] for row in rows]
            result[f"comprl/rollout/{half}/{key}"] = float(np.mean(values))
            result[f"comprl/rollout/{half}/{key}_p95"] = float(np.percentile(values, 95))
    return result


_OF_AN_EPISODE = ("success", "actions", "invalid_actions", "cut_turns", "cut_off", "cut_prompts")


def _half_metrics(details: Sequence[Details], prefix: str) -> dict[str, float]:
    halves = {
        "guided": [row for row in details if row["guided"]],
        "free": [row for row in details if not row["guided"]],
    }
    result: dict[str, float] = {}
    for half, rows in halves.items():
        result[f"{prefix}/{half}/rollouts"] = float(len(rows))
        if rows:
            result |= {f"{prefix}/{half}/{key}": _mean(rows, key) for key in _OF_AN_EPISODE}
    if halves["guided"]:
        result[f"{prefix}/guided/tool_calls"] = _mean(halves["guided"], "tool_calls")
    if halves["guided"] and halves["free"]:
        result[f"{prefix}/gap"] = result[f"{prefix}/guided/success"] - result[f"{prefix}/free/success"]
    return result


def advantage_metrics(advantages: Sequence[float], guided: Sequence[bool]) -> dict[str, float]:
    """Return mean and standard deviation of the advantages in each half, and the share of rollouts with advantage 0.

    A subgroup whose rollouts all succeeded or all failed has advantage 0 and gives no gradient.
    """
    result: dict[str, float] = {}
    for half, wanted in (("guided", True), ("free", False)):
        values = np.array([value for value, is_guided in zip(advantages, guided, strict=True) if is_guided == wanted])
        if len(values):
            result |= {
                f"comprl/{half}/advantage_mean": float(values.mean()),
                f"comprl/{half}/advantage_std": float(values.std()),
                f"comprl/{half}/advantage_zero": float((values == 0).mean()),
            }
    return result


def span_metrics(spans: Sequence[int]) -> dict[str, float]:
    """Return how many versions of the weights generated a rollout, mean and maximum.

    Args:
        spans: Number of versions of each rollout; 1 with a synchronous trainer.
    """
    if not spans:
        return {}
    return {"comprl/rollout/span": float(np.mean(spans)), "comprl/rollout/span_max": float(max(spans))}


def update_metrics(batch: TrainingBatch, version: int) -> dict[str, float]:
    """Return what an update of the extractor was trained on.

    Args:
        batch: The update's batch.
        version: Version of the weights before the update.
    """
    size = len(batch.records)
    groups = ["format_failure" if record.format_failure else record.kind for record in batch.records]
    outcomes = [reward for reward, group in zip(batch.rewards, groups, strict=True) if group != "format_failure"]
    return {
        "reward": float(np.mean(outcomes)),
        "weight": float(np.mean(batch.weights)),
        "informative": float(np.mean(np.abs(batch.advantages) > 1e-9)),  # a mean of equal rewards may be rounded
        "staleness": sum(version - record.weight_version for record in batch.records) / size,
        "response_tokens": sum(len(record.response_ids) for record in batch.records) / size,
        **{f"share/{group}": groups.count(group) / size for group in (*CallKind, "format_failure")},
    }
