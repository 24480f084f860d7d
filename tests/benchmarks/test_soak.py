"""The table and the verdict of a long run, from samples made by hand; and a sample of this process."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import soak
from benchmarks.soak import BOUNDED, REQUESTS, RUN, objects_in_store, ray_address, report, sample


def write(folder: Path, process: Callable[[int], dict[str, Any]], data: Callable[[int], dict[str, float]], last: int):
    """Write a run of ``last`` steps with one process; both functions get the step."""
    (folder / RUN).mkdir(parents=True)
    with (folder / "samples.jsonl").open("w") as samples, (folder / RUN / "metrics.jsonl").open("w") as metrics:
        for step in range(1, last + 1):
            line = {"step": step, "processes": {"1": {"name": "worker"} | process(step)}, "objects": 2 + step % 3}
            print(json.dumps(line), file=samples)
            print(json.dumps({"step": step, "data": {"loss": 1} | data(step)}), file=metrics)


def level(step: int) -> dict[str, Any]:
    return {"megabytes": 100.0 + step % 2, "threads": 3, "files": 5 + step % 2}


def quiet(step: int) -> dict[str, float]:
    """A queue that varies, and requests of which some are under way at most steps."""
    return dict.fromkeys(BOUNDED, 20.0 + step % 7) | dict.fromkeys(REQUESTS, float(step % 4))


def test_report_compares_an_early_with_a_late_window(tmp_path: Path) -> None:
    run = tmp_path / RUN
    run.mkdir(parents=True)
    steps = [4, 5, 6, 7, 8, 9, 10]
    with (tmp_path / "samples.jsonl").open("w") as samples, (run / "metrics.jsonl").open("w") as metrics:
        for step in steps:
            grows = {"name": "grows", "megabytes": 10.0 * step, "threads": 3, "files": step}
            flat = {"name": "flat", "megabytes": 7.0, "threads": 1, "files": 1}
            short = {"short": {"name": "short", "megabytes": 1.0, "threads": 1, "files": 1}} if step < 6 else {}
            line = {"step": step, "processes": {"1": grows, "2": flat, **short}, "objects": 2}
            print(json.dumps(line), file=samples)
            print(json.dumps({"step": step, "data": {"comprl/queue/depth": 20 - step, "loss": 1}}), file=metrics)
    text, faults = report(tmp_path, first=5, window=2)
    # 5 and 6 against 7 and 8: means 55 and 75
    assert "| `grows` | 55 | 75 | +36.4% | 3 → 3 | 6 → 8 |" in text
    assert "| `flat` | 7 | 7 | +0.0% | 1 → 1 | 1 → 1 |" in text
    assert "short" not in text  # it ended before the late window
    assert "| `comprl/queue/depth` | 16 | 10 |" in text and "loss" not in text
    assert faults[:2] == ["grows: memory 55 → 75 MB (+36.4%)", "grows: files 6 → 8"]
    assert set(faults[2:]) == {f"{name}: not measured" for name in (*BOUNDED[1:], *REQUESTS)}


def test_a_run_that_is_level_has_no_faults(tmp_path: Path) -> None:
    write(tmp_path, level, quiet, last=200)
    assert report(tmp_path, first=50, window=10)[1] == []


@pytest.mark.parametrize(
    ("process", "data", "fault"),
    [
        (lambda step: level(step) | {"megabytes": 100 + step / 20}, quiet, "worker: memory 103 → 110 MB (+6.8%)"),
        (lambda step: level(step) | {"megabytes": 200 - step / 5}, quiet, "worker: memory 189 → 161 MB (-14.7%)"),
        (lambda step: level(step) | {"threads": step // 10}, quiet, "worker: threads 5 → 19"),
        (level, lambda step: quiet(step) | {BOUNDED[0]: float(step)}, f"{BOUNDED[0]}: mean 87.5 → 163.0"),
        # One request in every 50 steps is left behind, while others come and go.
        (
            level,
            lambda step: quiet(step) | {REQUESTS[2]: step % 4 + step // 50},
            f"{REQUESTS[2]}: never below 1 → 2",
        ),
    ],
)
def test_what_grows_is_a_fault_and_names_itself(
    tmp_path: Path, process: Callable[[int], dict], data: Callable[[int], dict], fault: str
) -> None:
    write(tmp_path, process, data, last=200)
    assert report(tmp_path, first=50, window=10)[1] == [fault]


@pytest.mark.parametrize(("data", "code"), [(quiet, 0), (lambda step: {}, 1)])
def test_the_verdict_is_the_exit_code(
    tmp_path: Path,
    data: Callable[[int], dict],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, level, data, last=200)
    monkeypatch.setattr(sys, "argv", ["soak", "--report", "--output", str(tmp_path)])
    assert soak.main() == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("NOT AS IT SHOULD BE: comprl/under_way/extractor_requests: not measured" if code else soak.WELL)


def test_sample_measures_a_process_and_its_children() -> None:
    (here,) = [found for id, found in sample(psutil.Process()).items() if id.split()[0] == str(os.getpid())]
    assert here["megabytes"] > 1 and here["threads"] >= 1 and here["files"] >= 3


def judged(folder: Path, lives: Callable[[int], list[str]]) -> list[str]:
    """Return the faults of a run of 200 steps; the function says which processes live in a step, all of one size."""
    write(folder, level, quiet, last=200)
    file = folder / "samples.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["processes"] = {id: {"name": id, **level(line["step"])} for id in lives(line["step"])}
    file.write_text("\n".join(map(json.dumps, lines)))
    return report(folder, first=50, window=10)[1]


def test_what_began_after_the_early_steps_is_a_fault_as_nothing_says_whether_it_grows(tmp_path: Path) -> None:
    """As every process of a run that was continued."""
    faults = judged(tmp_path, lambda step: ["old"] + ["new"] * (step > 100))
    assert faults == ["new: has begun after step 59, so that nothing says whether it grows"]


def test_a_run_of_which_no_process_was_measured_twice_is_not_well(tmp_path: Path) -> None:
    faults = judged(tmp_path, lambda step: ["old"] if step <= 100 else ["new"])
    assert faults[0].startswith("new: has begun") and faults[1].startswith("no process lived in steps 50 to 59 and 189")
    assert len(faults) == 2


def test_a_process_that_has_just_begun_may_be_new(tmp_path: Path) -> None:
    assert judged(tmp_path, lambda step: ["old"] + ["new"] * (step > 196) + ["ended"] * (step < 150)) == []


@pytest.mark.parametrize(
    ("steps", "finished", "kept"),
    [
        (0, False, False),  # of a run that was removed
        (100, False, True),
        (100, True, True),  # continued with more steps
        (200, True, True),
    ],
)
def test_what_was_measured_is_kept_when_the_run_continues_or_has_finished(
    tmp_path: Path, steps: int, finished: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], cwd: Path) -> Any:
        started.append(command)
        return popen([sys.executable, "-c", "pass"])

    popen = subprocess.Popen
    monkeypatch.setattr(soak, "SECONDS", 0.01)
    monkeypatch.setattr(soak.subprocess, "Popen", start)
    write(tmp_path, level, quiet, last=steps)
    (tmp_path / "samples.jsonl").write_text('{"step": 1, "processes": {}}\n')
    if finished:
        (tmp_path / RUN / "finished.json").touch()
    assert soak.watch(tmp_path, 200) == 0
    assert len(started) == (steps < 200)
    assert (tmp_path / "samples.jsonl").read_text().startswith('{"step": 1, "processes": {}}\n') == kept


def test_objects_are_counted_in_the_ray_that_the_run_has_started() -> None:
    words = ["--node_ip_address=127.0.0.1", "--python_worker_command=python --gcs-address=wrong:1"]
    script = "import time; print('up', flush=True); time.sleep(300)"
    assert ray_address(psutil.Process()) is None
    command = ["raylet", "-c", script, *words, "--gcs-address=127.0.0.1:36747"]
    with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            assert ray_address(psutil.Process()) == "127.0.0.1:36747"
        finally:
            process.kill()


@pytest.mark.parametrize("printed", ["", "no number\n"])
def test_an_answer_that_is_no_number_is_told_and_the_sampling_goes_on(
    printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "_COUNT_OBJECTS", f"print({printed!r}, end='')")
    assert objects_in_store("127.0.0.1:1") is None and "cannot be counted" in capsys.readouterr().err


@pytest.mark.run
def test_objects_are_counted_in_a_ray_on_loopback_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by default; ``ray memory`` cannot reach one."""
    program = """
        import sys, numpy, ray
        from verl_comprl.platform.patches import ray_on_loopback
        with ray_on_loopback():
            ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        kept = [ray.put(numpy.zeros(10**6)) for _ in range(3)]
        print("up", flush=True)
        sys.stdin.readline()
    """
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    environment.pop("RAY_ADDRESS", None)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        address = ray_address(psutil.Process(process.pid))
        assert address is not None and objects_in_store(address) == 3
        process.communicate("\n")
    assert objects_in_store(address) is None and "cannot be counted" in capsys.readouterr().err
