"""The end of a Ray that does not shut down, with other processes in the place of its daemons."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from verl_comprl.platform import ray_session
from verl_comprl.platform.ray_session import end_ray


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ended = threading.Event()
    monkeypatch.setattr(ray, "shutdown", lambda: ended.wait(600))
    monkeypatch.setattr(ray_session, "_SHUTDOWN_SECONDS", 0.1)
    yield
    ended.set()


def daemon(folder: Path, name: str) -> psutil.Process:
    """Start a process of this name, which has started another one."""
    (folder / name).write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    (folder / name).chmod(0o755)
    process = psutil.Process(subprocess.Popen([folder / name]).pid)
    deadline = time.monotonic() + 60
    while not process.children() or process.name() != name:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
@pytest.mark.usefixtures("hanging")
def test_the_daemons_that_were_started_here_are_killed_with_their_processes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, ours = daemon(tmp_path, "other"), daemon(tmp_path, name)
    processes = [ours, *ours.children()]
    processes[0].suspend()
    try:
        end_ray()
        psutil.wait_procs(processes, timeout=60)
        assert not any(map(is_alive, processes))
        assert is_alive(other) and all(map(is_alive, other.children())), "what is not Ray's is left alone"
        assert "Ray to shut down" in capsys.readouterr().out
    finally:
        for process in [*other.children(), other, *filter(is_alive, processes)]:
            process.kill()


def test_a_process_on_a_cluster_of_others_ends_all_the_same() -> None:
    """Nothing is killed, and Ray's own handler does not wait once more when the process exits."""
    code = """
import atexit, subprocess, sys, time
import ray
from verl_comprl.platform import ray_session
def hang():
    print("called", flush=True)
    time.sleep(600)
atexit.register(hang)
ray.shutdown, ray_session._SHUTDOWN_SECONDS = hang, 0.1
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
ray_session.end_ray()
print(child.poll(), flush=True)
child.kill()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["called", "waited 0.1 s for Ray to shut down", "None"]
