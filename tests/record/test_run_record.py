"""Reader of a run's folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.record import RunRecord
from verl_comprl.record.follower import LineFollower
from verl_comprl.record.lines import encode
from verl_comprl.record.reader import step_metrics
from verl_comprl.record.step_files import StepFiles


def add(folder: Path, step: int, *records: dict[str, Any]) -> None:
    StepFiles(folder).append(step, [encode(record) + b"\n" for record in records])


def test_an_empty_folder_has_nothing_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    run = RunRecord(tmp_path)
    every = (run.episodes, run.calls, run.call_events, run.events, run.metrics, run.evaluations, run.failures)
    assert [list(read()) for read in every] == [[]] * 7 and run.steps() == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RunRecord(tmp_path / "nowhere")


def test_episodes_come_in_the_order_of_steps_and_lazily(tmp_path: Path) -> None:
    for step in (10, 9, 0):
        add(tmp_path / "episodes", step, {"id": f"{step}a"}, {"id": f"{step}b"})
    run = RunRecord(tmp_path)
    assert run.steps() == [0, 9, 10]
    assert [episode["id"] for episode in run.episodes()] == ["0a", "0b", "9a", "9b", "10a", "10b"]
    assert [episode["id"] for episode in run.episodes(range(5, 10))] == ["9a", "9b"]
    rest = run.episodes()
    next(rest)
    StepFiles(tmp_path / "episodes").file(9).unlink()  # deleted by the run that goes on
    assert [episode["id"] for episode in rest] == ["0b", "10a", "10b"]


def test_calls_have_their_later_events(tmp_path: Path) -> None:
    call = {"event": "call", "call": "c", "step": 1, "answer": "x"}
    use = {"event": "use", "call": "c", "step": 3, "reward": 1.0}
    orphan = {"event": "use", "call": "deleted", "step": 3, "reward": -1.0}
    trained = {"event": "trained", "call": "c", "step": 4, "update": 2}
    other = {"event": "call", "call": "d", "step": 4}
    add(tmp_path / "extractor_calls", 1, call)
    add(tmp_path / "extractor_calls", 3, use, orphan)
    add(tmp_path / "extractor_calls", 4, trained, other, {**call, "step": 4})
    run = RunRecord(tmp_path)
    assert list(run.calls()) == [
        {**call, "uses": [use], "trainings": [trained]},
        {**other, "uses": [], "trainings": []},
    ]
    assert len(list(run.call_events())) == 6


def test_logs_with_a_torn_last_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"a": 2, "nan": null}}\n{"step": 2, "da')
    (tmp_path / "experience.jsonl").write_text('{"event": "written"}\n')
    run = RunRecord(tmp_path)
    assert list(run.metrics()) == [{"step": 1, "data": {"a": 2.0}}] and list(run.events()) == [{"event": "written"}]


def test_metrics_that_do_not_say_their_step_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    bad = [f'{{"step": {step}, "data": {{"a": 3}}}}\n' for step in ('"abc"', "[1]", "null", "1e308")]
    file.write_text("".join([*bad, '{"data": {"a": 3}}\n', '{"step": 1, "data": {"a": 2}}\n']))
    assert list(RunRecord(tmp_path).metrics()) == [{"step": 1, "data": {"a": 2.0}}]
    follower = LineFollower(file, step_metrics)
    follower.poll()
    assert follower.records == [{"step": 1, "data": {"a": 2.0}}]


def test_an_evaluation_that_does_not_say_its_step_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "evaluations.jsonl").write_text('{"success": 1}\n{"step": null}\n{"step": 0, "success": 0}\n')
    assert list(RunRecord(tmp_path).evaluations()) == [{"step": 0, "success": 0}]


def test_the_reader_imports_nothing_heavy() -> None:
    code = "import sys, json; import verl_comprl.record; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"torch", "verl", "ray", "numpy", "pydantic", "transformers"}
