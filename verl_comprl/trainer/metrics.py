"""Our metrics from episode details: pure functions, names under ``comprl/``."""

from collections.abc import Sequence

import numpy as np

Details = dict[str, float]


def _mean(rows: Sequence[Details], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def rollout_metrics(details: Sequence[Details]) -> dict[str, float]:
    """Return success, length and tool use of the guided and the free half, and their gap."""
    halves = {
        "guided": [row for row in details if row["guided"]],
        "free": [row for row in details if not row["guided"]],
    }
    result: dict[str, float] = {}
    for half, rows in halves.items():
        result[f"comprl/{half}/rollouts"] = float(len(rows))
        if rows:
            result |= {f"comprl/{half}/{key}": _mean(rows, key) for key in ("success", "actions", "invalid_actions")}
    if halves["guided"]:
        result["comprl/guided/tool_calls"] = _mean(halves["guided"], "tool_calls")
    if halves["guided"] and halves["free"]:
        result["comprl/gap"] = result["comprl/guided/success"] - result["comprl/free/success"]
    result["comprl/degraded"] = float(sum(row["degraded"] for row in details))
    return result


def advantage_metrics(advantages: Sequence[float], guided: Sequence[bool]) -> dict[str, float]:
    """Return mean and deviation of the rollouts' advantages in each half, and the share that is 0.

    A rollout whose half of its prompt all succeeded or all failed has advantage 0 and teaches nothing.
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
