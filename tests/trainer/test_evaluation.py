"""Metrics of an evaluation, against numbers worked out by hand, and the file that keeps them."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_comprl.algorithm.interval import wilson_interval
from verl_comprl.trainer.evaluation import evaluation_metrics
from verl_comprl.trainer.trainer import ComplementarySync


def infos(*rows: tuple[Any, ...]) -> dict[str, list]:
    names = ("slot_guided", "success", "score", "actions", "invalid_actions", "tool_calls", "degraded", "task_number")
    rows = tuple((*row, at) if len(row) < len(names) else row for at, row in enumerate(rows))
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def test_per_task_and_average() -> None:
    rows = infos(
        (1.0, 1.0, 0.5, 4.0, 1.0, 2.0, 0.0),  # room, with
        (1.0, 0.0, 0.0, 6.0, 2.0, 0.0, 1.0),
        (0.0, 0.0, 0.2, 8.0, 0.0, 0.0, 0.0),  # room, without
        (1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0),  # maze, with
        (None,) * 7,  # failed
    )
    metrics = evaluation_metrics(["room", "room", "room", "maze", "maze"], rows)
    named = {name.removeprefix("comprl/eval/"): value for name, value in metrics.items()}
    assert (named["room/success_with"], named["maze/success_with"]) == (0.5, 1.0)
    assert (named["room/actions_with"], named["room/score_with"], named["room/tool_calls_with"]) == (5.0, 0.25, 1.0)
    assert (named["room/degraded_with"], named["room/episodes_with"], named["maze/episodes_with"]) == (0.5, 2.0, 1.0)
    assert named["room/invalid_rate_with"] == pytest.approx(3 / 10)  # per action, not per episode
    # The average is over tasks: the one episode of maze weighs as much as the two of room.
    assert (named["success_with"], named["invalid_rate_with"]) == (0.75, pytest.approx((3 / 10 + 1 / 2) / 2))
    assert (named["success_without"], named["actions_without"]) == (0.0, 8.0)
    assert (named["success_with_low"], named["success_with_high"]) == wilson_interval(2, 3)
    assert (named["episodes_with"], named["episodes_without"]) == (3.0, 1.0)
    assert (named["room/success_with_low"], named["room/success_with_high"]) == wilson_interval(1, 2)
    assert "maze/success_without" not in named


def test_an_instance_that_is_played_again_is_no_further_one() -> None:
    """40 episodes of 4 instances, two of which always succeed, tell as much as 4 episodes."""
    rows = infos(*((1.0, float(n % 4 < 2), 0.0, 1.0, 0.0, 0.0, 0.0, float(n % 4)) for n in range(40)))
    metrics = evaluation_metrics(["room"] * 40, rows)
    assert (metrics["comprl/eval/room/episodes_with"], metrics["comprl/eval/room/instances_with"]) == (40, 4)
    bounds = metrics["comprl/eval/room/success_with_low"], metrics["comprl/eval/room/success_with_high"]
    assert bounds == pytest.approx(wilson_interval(2, 4))


def test_an_evaluation_without_episodes_has_no_metrics() -> None:
    assert evaluation_metrics([], {}) == {}
    assert evaluation_metrics(["room"], infos((None,) * 7)) == {}


def test_the_bank_is_recorded_as_it_was_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_val_metrics_update", lambda *_, **__: {})
    trainer: Any = object.__new__(ComplementarySync)
    trainer.global_steps = 5
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path), "logger": []}})
    for name in ("progress", "logger", "_failures", "_episodes", "experience_runtime"):
        setattr(trainer, name, MagicMock())
    for sums in (("a", "b"), ("c", "c")):  # distillation goes on in the first
        trainer.experience_runtime.bank_checksum.side_effect = sums
        trainer.on_validate_begin()
        trainer._val_metrics_update([], [], {})
    lines = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["bank_before"], line["bank"]) for line in lines] == [("a", "b"), ("c", "c")]
