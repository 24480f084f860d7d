"""Metrics of a step with several local updates, against numbers worked out by hand."""

import pytest
from verl.trainer.ppo.v1.utils import MetricsAggregator

from verl_comprl.rollout.episode import TIMERS, TOKENS, OutputKind
from verl_comprl.trainer.step.batch import RolloutBatch
from verl_comprl.trainer.step.local_updates import LocalUpdates


def batch(guided: list[bool], success: list[float], versions: list[tuple[int, int]]) -> RolloutBatch:
    names = [
        "actions",
        "invalid_actions",
        "cut_turns",
        "cut_off",
        "cut_prompts",
        "tool_calls",
        "degraded",
        "unreported",
    ]
    names += [*(f"seconds_{part}" for part in TIMERS), *(f"tokens_{part}" for part in TOKENS)]
    halves = zip(guided, success, strict=True)
    size = len(guided)
    return RolloutBatch(
        keys=[f"p_{row}_0" for row in range(size)],
        prompts=["p"] * size,
        details=[dict.fromkeys(names, 1.0) | {"guided": float(half), "success": value} for half, value in halves],
        kinds=[OutputKind.EPISODE] * size,
        tokens=[1] * size,
        tasks=["minihack_room" if row else "maximum" for row in range(size)],
        versions=versions,
    )


def two_updates() -> LocalUpdates:
    updates = LocalUpdates()
    updates.add(batch([True, False], [1.0, 0.0], [(3, 3), (2, 3)]))
    updates.add_advantages([1.0, -1.0], [True, False])
    updates.add_distilled(1.0)
    updates.add(batch([True, False, False, False], [0.0, 0.0, 1.0, 1.0], [(3, 3), (1, 3), (3, 3), (3, 3)]))
    updates.add_advantages([0.0, -2.0, 0.5, 0.5], [True, False, False, False])
    updates.add_distilled(2.0)
    return updates


def test_counts_are_sums_and_means_are_over_all_rollouts() -> None:
    metrics = two_updates().metrics()
    assert (metrics["comprl/guided/rollouts"], metrics["comprl/free/rollouts"]) == (2.0, 4.0)
    assert (metrics["comprl/guided/success"], metrics["comprl/free/success"], metrics["comprl/gap"]) == (0.5, 0.5, 0.0)
    assert (metrics["comprl/degraded"], metrics["comprl/distilled"]) == (6.0, 3.0)
    assert metrics["comprl/free/advantage_mean"] == -0.5  # (−1 − 2 + ½ + ½)/4
    assert metrics["comprl/free/advantage_zero"] == 0.0 and metrics["comprl/guided/advantage_zero"] == 0.5
    # Versions per rollout: 1, 2, 1, 3, 1, 1.
    assert (metrics["comprl/rollout/span"], metrics["comprl/rollout/span_max"]) == (1.5, 3.0)
    # Names with "min" and "max" in them are tasks here.
    assert (metrics["comprl/task/maximum/rollouts"], metrics["comprl/task/minihack_room/rollouts"]) == (2.0, 4.0)
    assert metrics["comprl/task/minihack_room/free/rollouts"] == 4.0


def test_a_step_without_rollouts_has_counts_only() -> None:
    metrics = LocalUpdates().metrics()
    names = ("guided/rollouts", "free/rollouts", "degraded", "unreported")
    assert metrics == {f"comprl/{name}": 0.0 for name in names}


def test_verl_would_take_the_minimum_of_a_count() -> None:
    """Otherwise this could be left to verl."""
    aggregator = MetricsAggregator()
    for count in (2.0, 4.0):
        aggregator.add_step_metrics({"comprl/task/minihack_room/rollouts": count, "comprl/degraded": count}, 1)
    assert aggregator.get_aggregated_metrics() == {
        "comprl/task/minihack_room/rollouts": 2.0,
        "comprl/degraded": pytest.approx(3.0),
    }
