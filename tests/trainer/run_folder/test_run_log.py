"""JSON-lines files of a run, across a resume."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_comprl.record import RunRecord
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.step_files import StepFiles
from verl_comprl.trainer.run_folder.log import append_record, rewind_log
from verl_comprl.trainer.run_folder.rewinding import rewind_run
from verl_comprl.trainer.run_folder.tracking import MetricsFile


def steps(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize(("step", "kept"), [(-1, []), (0, [0]), (15, [0, 15]), (30, [0, 15, 30])])
def test_records_after_the_step_resumed_from_are_set_aside(tmp_path: Path, step: int, kept: list[int]) -> None:
    file = tmp_path / "evaluations.jsonl"
    for evaluated in (0, 15, 30):
        append_record(file, {"step": evaluated})
    rewind_log(file, step)
    assert steps(file) == kept
    aside = list(tmp_path.glob("evaluations-*.jsonl"))
    assert [steps(path) for path in aside] == ([[0, 15, 30]] if len(kept) < 3 else [])


def test_a_new_run_has_no_file_to_rewind(tmp_path: Path) -> None:
    rewind_log(tmp_path / "run" / "metrics.jsonl", -1)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_the_file_as_it_was_and_the_next_start_drops_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        MetricsFile(file).log({"loss": 1.0}, step)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            rewind_log(file, 1)
    assert steps(file) == [1, 2, 3]
    rewind_log(file, 1)
    assert steps(file) == [1]


def test_a_line_that_a_killed_process_left_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    MetricsFile(file).log({"loss": 1.0}, 1)
    with file.open("a") as lines:
        lines.write('{"step":2,"da')
    rewind_log(file, 5)
    MetricsFile(file).log({"loss": 0.5}, 2)
    assert steps(file) == [1, 2]


@pytest.mark.parametrize("line", ['{"loss": 1.0}', '{"step": "two"}', '{"step": null}', '{"step": [1]}'])
def test_a_record_without_a_step_is_set_aside_and_said(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    rewind_log(file, 2)
    assert steps(file) == [1, 2]
    (aside,) = tmp_path.glob("metrics-*.jsonl")
    assert aside.read_text().splitlines()[1] == line
    assert capsys.readouterr().out == f"{file}: 1 lines without a step are dropped; {aside.name} has them\n"


def test_a_full_disk_costs_a_line_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    MetricsFile(tmp_path / "metrics.jsonl").log({"loss": 1.0}, 7)
    assert "metrics.jsonl lacks a line of step 7: [Errno 28] No space left on device" in capsys.readouterr().out


def test_a_failure_that_names_a_secret_is_written_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-0123456789")
    append_record(tmp_path / "failures.jsonl", {"step": 1, "text": "401 for canary-0123456789"})
    assert (tmp_path / "failures.jsonl").read_text() == '{"step":1,"text":"401 for ***"}\n'


def test_a_text_with_line_separators_of_unicode_stays_in_its_line(tmp_path: Path) -> None:
    file = tmp_path / "failures.jsonl"
    for step, text in enumerate(["one\u2028two\u0085three", "kept", "later"]):
        append_record(file, {"step": step, "text": text})
    rewind_log(file, 1)
    texts = [json.loads(line)["text"] for line in file.read_bytes().split(b"\n")[:-1]]
    assert texts == ["one\u2028two\u0085three", "kept"]


def test_metrics_have_the_format_of_verls_file_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.tracking import Tracking

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "verl.jsonl"))
    tracking = Tracking("project", "experiment", default_backend=["file"])
    tracking.logger["metrics_file"] = MetricsFile(tmp_path / "ours.jsonl")
    tracking.log({"a": 1, "b": np.float32(0.5), "c": float("nan"), "d": np.int64(3)}, step=1)
    tracking.log({"a": 2.5}, step=2)
    tracking.finish()
    assert (tmp_path / "ours.jsonl").read_text() == (tmp_path / "verl.jsonl").read_text()


def test_a_value_of_an_unknown_type_does_not_end_the_run(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.jsonl").log({"a": torch.tensor(1.0)}, 1)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "data": {"a": "tensor(1.)"}}


def write_steps(run: Path) -> tuple[list[str], list[StepFiles]]:
    """Write steps 4 to 6 into all files but that of the bank's events; return their names, and those of the folders."""
    names = ["metrics.jsonl", "evaluations.jsonl", "failures.jsonl"]
    folders = [StepFiles(run / name) for name in ("episodes", "extractor_calls")]
    for step in (4, 5, 6):
        for name in names:
            append_record(run / name, {"step": step})
        for files in folders:
            files.append(step, [b'{"step": %d}\n' % step])
    return names, folders


def test_a_resumed_run_takes_all_its_files_back(tmp_path: Path) -> None:
    """The events of the bank to what led to that of the checkpoint: also of step 6, but not what came afterwards."""
    names, folders = write_steps(tmp_path)
    events = tmp_path / "experience.jsonl"
    for step in (4, 6, 5):
        append_record(events, {"step": step})
    held = Prefix.of(events)
    for step in (5, 6):
        append_record(events, {"step": step})
    rewind_run(tmp_path, 5, held)
    assert steps(events) == [4, 6, 5]
    assert [steps(file) for file in tmp_path.glob("experience-*.jsonl")] == [[4, 6, 5, 5, 6]]
    assert [steps(tmp_path / name) for name in names] == [[4, 5]] * 3
    assert [files.steps() for files in folders] == [[4, 5]] * 2
    assert [record["step"] for record in RunRecord(tmp_path).episodes()] == [4, 5]


def test_events_go_by_their_steps_if_the_checkpoint_is_of_another_file_or_does_not_say(tmp_path: Path) -> None:
    events = tmp_path / "experience.jsonl"
    append_record(events, {"step": 4, "call": "another"})
    of_another = Prefix.of(events)
    events.unlink()
    for held in (of_another, None):
        for step in (4, 6, 5):
            append_record(events, {"step": step})
        rewind_run(tmp_path, 5, held)
        assert steps(events) == [4, 5]
        events.unlink()


def test_a_checkpoint_without_events_leaves_none(tmp_path: Path) -> None:
    events = tmp_path / "experience.jsonl"
    held = Prefix.of(events)
    rewind_run(tmp_path, 5, held)
    assert not events.exists()
    append_record(events, {"step": 5})
    rewind_run(tmp_path, 5, held)
    assert steps(events) == []


def test_a_line_that_was_torn_before_the_checkpoint_does_not_spoil_the_next(tmp_path: Path) -> None:
    events = tmp_path / "experience.jsonl"
    append_record(events, {"step": 1})
    with events.open("a") as lines:
        lines.write('{"step":2,"ev')
    held = Prefix.of(events)
    append_record(events, {"step": 1})
    rewind_run(tmp_path, 1, held)
    append_record(events, {"step": 3})
    assert [event["step"] for event in RunRecord(tmp_path).events()] == [1, 3]
