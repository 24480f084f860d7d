"""A run as its files tell it: starting, running, silent, over."""

import json
import math
import os
from pathlib import Path

import pytest
from run_folders import append, halves, write_run

from verl_comprl.watch.watched_run import WatchedRun

NOW = 1_800_000_000.0


def touched(folder: Path, ago: float = 0.0) -> None:
    for file in folder.iterdir():
        os.utime(file, (NOW - ago, NOW - ago))


def watched(folder: Path) -> WatchedRun:
    run = WatchedRun(folder, clock=lambda: NOW)
    run.refresh()
    return run


def test_a_run_that_starts_has_only_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="not the folder of a run"):
        WatchedRun(folder)
    (folder / "train.log").write_text("starting\n")
    touched(folder)
    run = watched(folder)
    assert run.status() == "starting" and run.total == 0
    (folder / "train.log").unlink()
    folder.rmdir()
    write_run(folder, {1: halves(0.5, 0.25)})
    touched(folder)
    run.refresh()
    assert run.status() == "running" and run.state.step == 1 and run.total == 60


def test_before_the_first_step_a_run_may_be_silent_for_longer(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {0: {"comprl/eval/success_without": 0.25}})
    touched(folder, ago=590)
    assert watched(folder).status() == "starting"
    touched(folder, ago=700)
    assert watched(folder).status() == "silent for 11 min 40 s"
    append(folder, {1: halves(0.5, 0.25)})
    touched(folder, ago=590)
    assert watched(folder).status() == "silent for 9 min 50 s"


def test_new_steps_are_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {0: {"comprl/eval/success_without": 0.25}, 1: halves(0.5, 0.25)})
    run = watched(folder)
    assert run.state.step == 1 and list(run.state.evaluations) == [0]
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 2, "data": {"comprl/free/roll')
    run.refresh()
    assert run.state.step == 1
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('outs": 4.0, "comprl/free/success": 0.75}}\n')
    run.refresh()
    assert run.state.step == 2 and run.values("comprl/free/success") == [0.25, 0.75]
    assert run.values("comprl/guided/success")[0] == 0.5 and math.isnan(run.values("comprl/guided/success")[1])


def test_the_time_left_counts_evaluations(tmp_path: Path) -> None:
    steps = {step: halves(0.5, 0.25) for step in range(1, 11)}
    steps[10]["timing_s/testing"] = 20.0
    run = watched(write_run(tmp_path / "run", steps))
    assert run.seconds_per_step() == 5.0
    assert run.seconds_left() == 50 * (5.0 + 2.0)


def test_the_share_of_nothing_written_is_by_step(tmp_path: Path) -> None:
    counts = [(1, 3), (3, 3), (3, 3), (4, 7)]
    steps = {
        number: halves(0.5, 0.25, distillations__written=written, **{"distillations__return": nothing})
        for number, (nothing, written) in enumerate(counts, 1)
    }
    shares = watched(write_run(tmp_path / "run", steps)).return_shares()
    assert shares[:2] == [0.25, 1.0] and math.isnan(shares[2]) and shares[3] == 0.2


def test_how_a_run_has_ended_is_told_by_its_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {30: halves(0.5, 0.25)})

    def write(name: str, text: str, ago: float) -> None:
        (folder / name).write_text(text)
        os.utime(folder / name, (NOW - ago, NOW - ago))

    touched(folder, ago=60)
    assert watched(folder).status() == "running"
    touched(folder, ago=3000)
    assert watched(folder).status() == "silent for 50 min 0 s"
    write("unfinished.json", json.dumps({"status": "failed", "error": "no \x1b[31mmemory\nTraceback"}), ago=2999)
    assert watched(folder).status() == "failed: no  [31mmemory"
    touched(folder, ago=10)  # it has gone on since
    write("unfinished.json", json.dumps({"status": "failed"}), ago=2999)
    assert watched(folder).status() == "running"
    append(folder, {60: halves(0.5, 0.25)})
    os.utime(folder / "metrics.jsonl", (NOW - 10, NOW - 10))
    assert watched(folder).status() == "finished"
    touched(folder, ago=10)
    write("unfinished.json", "{", ago=5)
    write("finished.json", json.dumps({"seconds": 61.0}), ago=5)
    assert watched(folder).status() == "finished after 61 s"
