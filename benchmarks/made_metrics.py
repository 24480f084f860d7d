"""Metrics and evaluations of a made run."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from verl_comprl.algorithm.interval import wilson_interval

EPISODES = 64
"""Evaluated per task and arm."""


def evaluation(draw: random.Random, step: int, chances: Mapping[str, float], gain: float) -> dict[str, Any]:
    """Return the line of an evaluation.

    Args:
        draw: Source of random numbers.
        step: Step of the evaluation.
        chances: Probability of success without experience, by task.
        gain: What experience adds to it.
    """
    line: dict[str, Any] = {"step": step, "bank": "0" * 64}
    for arm, extra in (("with", gain), ("without", 0.0)):
        good = {task: sum(draw.random() < chance + extra for _ in range(EPISODES)) for task, chance in chances.items()}
        groups = {f"{task}/": (successes, EPISODES) for task, successes in good.items()}
        groups[""] = (sum(good.values()), EPISODES * len(good))
        for prefix, (successes, count) in groups.items():
            low, high = wilson_interval(successes, count)
            values = {"": successes / count, "_low": low, "_high": high}
            line |= {f"comprl/eval/{prefix}success_{arm}{end}": value for end, value in values.items()}
    return line


def step_metrics(draw: random.Random, step: int, size: int, episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the line of a step, of which the success rates are those of ``episodes``; ``size`` is the bank's."""
    data: dict[str, float] = {
        "comprl/bank/size": size,
        "timing_s/step": 40 + draw.random() * 4,
        "timing_s/gen": 22 + draw.random() * 3,
    }
    for half in ("guided", "free"):
        of_half = [episode for episode in episodes if episode["guided"] == (half == "guided")]
        data[f"comprl/{half}/rollouts"] = len(of_half)
        if of_half:
            data[f"comprl/{half}/success"] = sum(item["outcome"]["success"] for item in of_half) / len(of_half)
            data[f"comprl/{half}/actions"] = sum(len(item["turns"]) for item in of_half) / len(of_half)
    if "comprl/guided/success" in data:
        data["comprl/extractor/reward"] = 2 * data["comprl/guided/success"] - 1
    return {"step": step, "data": data}
