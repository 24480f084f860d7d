"""The file of a sweep's records when another sweep in its folder has other runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.sweep.checked_run import FINISHED, CheckedRun
from verl_comprl.sweep.runs import Run
from verl_comprl.sweep.sweep import Sweep


def finished(folder: Path, **more: Any) -> CheckedRun:
    """Return a run that has finished before, so that a sweep starts nothing for it."""
    folder.mkdir(exist_ok=True)
    record = {"name": folder.name, "overrides": [], "folder": str(folder), "status": "finished", **more}
    (folder / FINISHED).write_text(json.dumps(record))
    return CheckedRun(Run(folder.name), OmegaConf.create({"trainer": {"default_local_dir": str(folder)}}), None)


def names(results: Path) -> list[str]:
    return [json.loads(line)["name"] for line in results.read_text().splitlines()]


def test_finished_runs_of_another_sweep_keep_their_lines(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    results = tmp_path / "sweep.jsonl"
    results.symlink_to(tmp_path / "elsewhere" / "results.jsonl")
    a, b, c = (finished(tmp_path / name, metrics={"actor/grad_norm": math.nan, "x": math.inf}) for name in "abc")
    Sweep([a, b, c], results).run()
    assert [record["name"] for record in Sweep([c], results).run()] == ["c"]
    assert names(results) == ["a", "b", "c"]
    Sweep([b, finished(tmp_path / "d")], results).run()
    assert names(results) == ["a", "c", "b", "d"] and results.is_symlink()


def test_a_run_has_one_line_by_whatever_path_its_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "sweep.jsonl"
    Sweep([finished(Path("a")), finished(Path("b"))], results).run()
    Sweep([finished(tmp_path / "a", seconds=2)], results).run()
    assert names(results) == ["b", "a"]
    assert json.loads(results.read_text().splitlines()[1])["seconds"] == 2


def test_lines_of_runs_that_are_gone_have_not_finished_or_are_torn_go(tmp_path: Path) -> None:
    results = tmp_path / "sweep.jsonl"
    gone, here, failed = (finished(tmp_path / name) for name in ("gone", "here", "failed"))
    lines = [json.loads((run.folder / FINISHED).read_text()) for run in (gone, here, failed)]
    lines[2]["status"] = "failed"
    (gone.folder / FINISHED).unlink()
    lines += [{**lines[1], "folder": folder} for folder in (None, 3, {})]
    torn = '[]\n{"name": "torn", "status": "fin'
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + torn)
    Sweep([finished(tmp_path / "new")], results).run()
    assert names(results) == ["here", "new"]
