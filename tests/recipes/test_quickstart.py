"""README's first command, without its training: what it starts and leaves of a run before, and how it is stopped."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from recipes.miniature import quickstart
from recipes.miniature.run import ROOT
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose

Commands = list[Sequence[str]]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands that were started, which end at once with code 0."""
    for name in ("COMPRL_MODELS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that what is set now is undone at the end
    monkeypatch.setenv("COMPRL_MINIATURE", str(tmp_path))
    commands: Commands = []
    monkeypatch.setattr(quickstart, "run_until_end", lambda command: commands.append(command) or 0)
    return commands


def left(folder: Path, step: int) -> Path:
    """The folder of a run that has a checkpoint of ``step``."""
    run = folder / "quickstart"
    run.mkdir()
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    return run


def test_it_starts_a_run_that_passes_the_checks_of_a_start(started: Commands, tmp_path: Path) -> None:
    assert quickstart.main(["trainer.logger=[console]"]) == 0
    (command,) = started
    assert command[1:3] == ["-m", "verl_comprl.train"]
    options = dict(zip(command[3:7:2], command[4:7:2], strict=True))
    assert options["--config-dir"] == str(ROOT / "recipes")
    overrides = tuple(command[7:])
    runs = [Run("quickstart", overrides)]
    (checked,) = check(runs, compose(runs, ROOT / "recipes", options["--config-name"]))
    settings = checked.config.trainer
    assert f"trainer.default_local_dir={tmp_path / 'quickstart'}" in overrides
    assert (settings.total_training_steps, settings.test_freq, settings.logger) == (30, 15, ["console"])
    assert all(Path(file).is_file() for file in (checked.config.data.train_files, checked.config.data.val_files))


def test_a_run_that_has_finished_is_set_aside_and_one_that_has_not_is_continued(
    started: Commands, tmp_path: Path
) -> None:
    run = left(tmp_path, quickstart.STEPS - 1)
    quickstart.main([])
    assert run.exists() and not list(tmp_path.glob("quickstart-*"))
    (run / "latest_checkpointed_iteration.txt").write_text(str(quickstart.STEPS))
    quickstart.main([])
    (aside,) = tmp_path.glob("quickstart-*")
    assert not run.joinpath("latest_checkpointed_iteration.txt").exists()
    assert (aside / "latest_checkpointed_iteration.txt").read_text() == str(quickstart.STEPS)


def test_what_experience_was_worth_is_said_after_a_training_that_ended_well(
    monkeypatch: pytest.MonkeyPatch, started: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = left(tmp_path, 3)
    evaluation = {"step": 30}
    for mode, value in (("with", 0.5), ("without", 0.2)):
        name = f"comprl/eval/success_{mode}"
        evaluation |= {name: value, f"{name}_low": value, f"{name}_high": value, f"comprl/eval/episodes_{mode}": 192.0}
    (run / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    (run / "metrics.jsonl").write_text("")
    assert quickstart.main([]) == 0
    said = capsys.readouterr().out
    assert "with it" in said and "+30 points" in said and f"Figure: {run / 'worth.png'}" in said
    assert (run / "worth.png").stat().st_size > 5000
    monkeypatch.setattr(quickstart, "run_until_end", lambda _: 130)
    assert quickstart.main([]) == 130
    assert "Figure" not in capsys.readouterr().out


TRAINING = """
import signal, sys, time
from pathlib import Path

got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: got.append(number))
Path("training").touch()
while not got:
    time.sleep(0.02)
time.sleep(1.5)  # an update, and the checkpoint
Path("checkpoint").write_text(" ".join(str(int(number)) for number in got))
sys.exit(130)
"""
QUICKSTART = "import sys; from recipes.miniature.quickstart import run_until_end; sys.exit(run_until_end(sys.argv[1:]))"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_interrupted_has_the_time_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    program = f"import os; os.chdir({str(tmp_path)!r})\n{TRAINING}"
    command = [sys.executable, "-c", QUICKSTART, sys.executable, "-c", program]
    process = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + 60
    while not (tmp_path / "training").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert (tmp_path / "checkpoint").read_text() == str(int(number))
