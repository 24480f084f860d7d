"""Metrics of a step, against numbers worked out by hand."""

from collections.abc import Callable

import pytest
from running import undocumented
from verl.trainer.ppo.v1.utils import MetricsAggregator

from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.rollout.episode import TIMERS, TOKENS
from verl_comprl.trainer.step.metrics import advantage_metrics, rollout_metrics, update_metrics


def test_advantages_per_half() -> None:
    metrics = advantage_metrics([1.0, -1.0, 0.0, 0.0, 2.0], [True, True, False, False, False])
    assert metrics == {
        "comprl/guided/advantage_mean": 0.0,
        "comprl/guided/advantage_std": 1.0,
        "comprl/guided/advantage_zero": 0.0,
        "comprl/free/advantage_mean": pytest.approx(2 / 3),
        "comprl/free/advantage_std": pytest.approx((8 / 9) ** 0.5),  # 0, 0, 2: squares 4/9, 4/9, 16/9
        "comprl/free/advantage_zero": pytest.approx(2 / 3),
    }


def test_an_empty_half_has_no_metrics() -> None:
    assert all("guided" not in name for name in advantage_metrics([1.0], [False]))


def episode(guided: bool, success: float, actions: float = 4.0) -> dict[str, float]:
    numbers = {"guided": float(guided), "success": success, "actions": actions}
    return numbers | {
        "invalid_actions": 1.0,
        "cut_turns": 3.0 * guided,
        "cut_off": success,
        "cut_prompts": success,
        "tool_calls": 2.0 * guided,
        "degraded": 0.0,
        "unreported": float(guided),
        **dict.fromkeys((f"seconds_{part}" for part in TIMERS), 0.5),
        **dict.fromkeys((f"tokens_{part}" for part in TOKENS), 10.0),
    }


def test_metrics_of_halves_over_all_tasks_and_per_task() -> None:
    rows = [episode(True, 1.0), episode(False, 0.0), episode(True, 0.0, 8.0), episode(False, 1.0)]
    tasks = ["shop", "shop", "room", "house"]
    metrics = rollout_metrics(rows, tasks)
    assert (metrics["comprl/guided/success"], metrics["comprl/free/success"], metrics["comprl/gap"]) == (0.5, 0.5, 0.0)
    assert metrics["comprl/guided/actions"] == 6.0
    assert (metrics["comprl/degraded"], metrics["comprl/unreported"]) == (0.0, 2.0)
    assert metrics["comprl/guided/cut_turns"] == 3.0 and metrics["comprl/free/cut_off"] == 0.5
    assert (metrics["comprl/task/shop/gap"], metrics["comprl/task/shop/guided/tool_calls"]) == (1.0, 2.0)
    assert metrics["comprl/task/room/guided/actions"] == 8.0
    assert metrics["comprl/task/room/free/rollouts"] == 0.0 and "comprl/task/room/gap" not in metrics
    assert metrics["comprl/task/house/free/success"] == 1.0


def test_a_single_task_has_no_metrics_of_its_own() -> None:
    assert not [name for name in rollout_metrics([episode(True, 1.0)], ["room"]) if "task" in name]


def test_metrics_of_an_update(make_record: Callable[..., GenerationRecord]) -> None:
    records = [
        *(make_record(f"entry {version}", weight_version=version) for version in (2, 4)),
        make_record("answer", kind=CallKind.ANSWER, weight_version=6, response_ids=(1,), response_log_probs=(-1.0,)),
        make_record("unreadable", kind=CallKind.ANSWER, weight_version=6, format_failure=True),
    ]
    batch = TrainingBatch(records, [1.0, -1.0, 0.6, -1.0], [1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1e-17, -1.6])
    metrics = update_metrics(batch, version=6)
    assert metrics == {
        "reward": pytest.approx(0.2),  # (1 − 1 + 0.6)/3, without the format failure
        "weight": 0.75,
        "informative": 0.5,
        "staleness": 1.5,
        "response_tokens": 1.75,
        "share/distill": 0.5,
        "share/merge": 0.0,
        "share/answer": 0.25,
        "share/format_failure": 0.25,
    }
    assert undocumented(f"comprl/extractor/{name}" for name in metrics) == []


def test_time_and_tokens_of_the_halves() -> None:
    guided = [episode(True, 1.0) | {"seconds_guide": seconds} for seconds in (0.1, 0.2, 0.3, 1.4)]
    metrics = rollout_metrics([*guided, episode(False, 0.0) | {"seconds_guide": 0.0}], ["room"] * 5)
    assert metrics["comprl/rollout/guided/seconds_guide"] == pytest.approx(0.5)
    # Linear between the order statistics: position .95 · 3 = 2.85 is .3 + .85 · 1.1.
    assert metrics["comprl/rollout/guided/seconds_guide_p95"] == pytest.approx(1.235)
    assert metrics["comprl/rollout/free/seconds_guide"] == 0.0
    assert metrics["comprl/rollout/free/tokens_generated"] == metrics["comprl/rollout/free/tokens_generated_p95"] == 10
    assert undocumented(name for name in metrics if "/rollout/" in name) == []


def test_verl_takes_the_mean_of_time_and_tokens_over_the_updates_of_a_step() -> None:
    aggregator = MetricsAggregator()
    for seconds, rollouts in ((1.0, 1), (2.0, 3)):
        row = {name: seconds for name in episode(True, 1.0)}
        aggregator.add_step_metrics(rollout_metrics([row], ["room"]), sample_count=rollouts)
    combined = aggregator.get_aggregated_metrics()
    costs = {name: value for name, value in combined.items() if "/rollout/" in name}
    assert len(costs) == 2 * (len(TIMERS) + len(TOKENS)) and set(costs.values()) == {1.75}
