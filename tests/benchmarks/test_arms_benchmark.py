"""The comparison of arms without its training: its tasks, the configs of its runs, and its tables."""

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks import arms
from recipes.miniature.run import MODELS
from verl_comprl import sweep
from verl_comprl.cli.main import main
from verl_comprl.sweep.runs import compose

SUCCESS = {"complementary": (("with", 0.5), ("without", 0.25)), "baseline": (("without", 0.15),)}
"""At the end of the first seed's run; the second's is 0.2 more, and both are 0.1 at the start."""


class Sweep:
    """In the place of training: composes the runs, and leaves evaluations in their folders."""

    def __init__(self) -> None:
        self.configs: list[Any] = []

    def run(self, runs: list[sweep.Run], *, config_dir: Path, config_name: str) -> list[dict[str, Any]]:
        self.configs = compose(runs, config_dir, config_name)
        return [self._record(run.name, config) for run, config in zip(runs, self.configs, strict=True)]

    def _record(self, name: str, config: Any) -> dict[str, Any]:
        arm, _, seed = name.rpartition("-")
        folder = Path(config.trainer.default_local_dir)
        folder.mkdir(parents=True)
        last = {f"comprl/eval/success_{side}": value + 0.2 * (int(seed) - 1) for side, value in SUCCESS[arm]}
        steps = {0: dict.fromkeys(last, 0.1), config.trainer.total_training_steps: last}
        lines = [json.dumps({"step": step, **values}) + "\n" for step, values in steps.items()]
        (folder / "evaluations.jsonl").write_text("".join(lines))
        metrics = [
            {"step": step, "data": {"comprl/gap": 0.5 * step} if arm == "complementary" else {}} for step in (1, 2)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        return {"name": name, "folder": str(folder), "seconds": 10.0 * int(seed), "status": "finished"}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a comparison, whose models are those that come with the miniature."""

    def run(command: list[str], *, cwd: Path, check: bool) -> None:
        module, arguments = command[2], command[3:]
        if module == "recipes.minihack_small.prepare":
            assert find_spec(module) and arguments[0] == "--output"
            Path(arguments[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(arguments[1]).symlink_to(MODELS / "plain")
        else:
            assert module == "verl_comprl.cli.main" and main(arguments) == 0

    for name in ("COMPRL_MODELS", "COMPRL_TASKS", "COMPRL_RUN", "HF_HUB_OFFLINE", "VERL_PLATFORM"):
        monkeypatch.setenv(name, "")  # so that what is set now is undone at the end
    monkeypatch.setattr(arms, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(arms, "TRAINING_TASKS", 3)
    options = ["--steps", "6", "--seeds", "1", "2", "--tasks", "2", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["arms", *options])
    return tmp_path


@pytest.mark.slow
def test_every_arm_and_seed_is_a_run_and_the_table_is_over_seeds(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in = Sweep()
    monkeypatch.setattr(arms, "sweep", SimpleNamespace(Run=sweep.Run, run=stand_in.run))
    arms.main()
    chosen = [(config.comprl.arm, config.data.seed) for config in stand_in.configs]
    assert chosen == [("complementary", 1), ("baseline", 1), ("complementary", 2), ("baseline", 2)]
    for config in stand_in.configs:
        assert (config.trainer.total_training_steps, config.trainer.test_freq) == (6, 2)
        rows = [pq.read_metadata(files[0]).num_rows for files in (config.data.train_files, config.data.val_files)]
        assert rows == [3, 2]
        models = (config.actor_rollout_ref.model.path, config.extractor.model.path)
        assert all((Path(model) / "config.json").is_file() for model in models)
    # Two seeds that differ by 0.2: their standard deviation is 0.2 / √2.
    assert capsys.readouterr().out.splitlines()[-10:] == [
        "| arm | experience | step 0 | step 6 | last, by seed |",
        "|---|---|---|---|---|",
        "| complementary | with | 0.10 ± 0.00 | 0.60 ± 0.14 | 0.50, 0.70 |",
        "| complementary | without | 0.10 ± 0.00 | 0.35 ± 0.14 | 0.25, 0.45 |",
        "| baseline | without | 0.10 ± 0.00 | 0.25 ± 0.14 | 0.15, 0.35 |",
        "",
        "| arm | wall clock, s |",
        "|---|---|",
        "| complementary | 15 (10 to 20) |",
        "| baseline | 15 (10 to 20) |",
    ]
    rows = [json.loads(line) for line in (output / "rows.jsonl").read_text().splitlines()]
    assert [(row["arm"], row["seed"], row["seconds"]) for row in rows] == [
        ("complementary", 1, 10),
        ("complementary", 2, 20),
        ("baseline", 1, 10),
        ("baseline", 2, 20),
    ]
    assert rows[0]["evaluations"] == [
        {"step": 0, "with": 0.1, "without": 0.1},
        {"step": 6, "with": 0.5, "without": 0.25},
    ]
    assert rows[0]["gap"] == [0.5, 1.0] and "gap" not in rows[2]


def test_there_is_no_table_of_runs_that_have_not_finished(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"name": f"{arm}-{seed}", "status": "finished"} for seed in (1, 2) for arm in SUCCESS]
    records[-1]["status"] = "interrupted"
    monkeypatch.setattr(arms, "prepare", lambda output, tasks: None)
    monkeypatch.setattr(arms, "sweep", SimpleNamespace(Run=sweep.Run, run=lambda runs, **_: records))
    with pytest.raises(SystemExit, match="not all runs finished: "):
        arms.main()
    assert capsys.readouterr().out == ""
