"""A run that is stopped or killed after its last step, and has none left to play when it continues."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.sweep.checked_run import CheckedRun
from verl_comprl.sweep.runs import Run
from verl_comprl.sweep.sweep import Sweep

STEPS = "trainer.total_training_steps"
STEP = {"training/global_step": 60.0, "comprl/free/success": 0.5}


class OnlyDrains:
    """A run that resumes behind its last step, after an evaluation or without one."""

    trainer, was_stopped = None, False

    def watched(self, display: Any) -> Any:
        return nullcontext()

    def run(self, display: Any, *, guided_fraction: float | None, on_start: Callable[[int], None]) -> None:
        on_start(60)
        display.finish({"comprl/queue/depth": 0.0}, {})

    def release(self) -> None:
        pass


def wanted(folder: Path, *overrides: str) -> CheckedRun:
    return CheckedRun(Run("run", overrides), OmegaConf.create({"trainer": {"default_local_dir": str(folder)}}), None)


def write(file: Path, *lines: dict[str, Any]) -> None:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], CheckedRun]:
    """Let a run in ``folder`` drain; return its record, and the run with 120 steps."""
    weights = folder / "global_step_60" / "actor" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    (folder / "latest_checkpointed_iteration.txt").write_text("60")
    sweep = Sweep([wanted(folder)], folder / "sweep.jsonl")
    monkeypatch.setattr(sweep, "_start_ray", lambda run: setattr(sweep, "_engines", SimpleNamespace()))
    monkeypatch.setattr(sweep, "make_training", lambda run: OnlyDrains())
    (record,) = sweep.run()
    return record, wanted(folder, f"{STEPS}=120")


def test_its_record_has_the_metrics_of_its_last_step_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"step": 59, "data": STEP | {"training/global_step": 59.0, "comprl/early": 1.0}}
    evaluation = {"step": 60, "data": {"val-core/acc": 1.0}}  # of a part before, which drained and was killed, too
    write(tmp_path / "metrics.jsonl", before, {"step": 60, "data": STEP}, evaluation)
    of = [{"step": step, "bank": "a1b2", "comprl/eval/success_without": share} for step, share in ((0, 0.25), (60, 1))]
    write(tmp_path / "evaluations.jsonl", *of)
    record, longer = train(tmp_path, monkeypatch)
    assert record["metrics"] == STEP | {"comprl/eval/success_without": 1.0, "comprl/queue/depth": 0.0}
    assert (longer.stored_steps, longer.surplus, longer.mistake) == (60, -60, None)
    assert "success 100 %" in capsys.readouterr().out


def test_its_record_has_its_steps_where_the_kill_came_before_the_last_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, longer = train(tmp_path, monkeypatch)
    assert (record["steps"], record["metrics"]) == (60, {"comprl/queue/depth": 0.0})
    assert (longer.stored_steps, longer.surplus, longer.mistake) == (60, -60, None)
