"""Shared memory that a killed process has left, which is real here, as the doctor sees it."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.cli.doctor import leftovers

# Killed with its tracker, which would remove both.
OWNER = """
import os, signal, sys
from multiprocessing import get_context, resource_tracker
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=2**24)
segment.buf[: 2**20] = bytes(2**20)
semaphore = get_context("spawn").Semaphore()
print(segment.name, "sem." + semaphore._semlock.name.lstrip("/"), flush=True)
sys.stdin.readline()
os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process, and the files of its segment of 16 MiB, of which one is written to, and of its semaphore."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        files = [f"/dev/shm/{name}" for name in process.stdout.readline().split()]
        yield process, files
        process.kill()
    for file in files:
        Path(file).unlink(missing_ok=True)


def test_what_a_killed_process_has_left_is_named_with_the_memory_it_takes(
    doctor: Any, owner: tuple[subprocess.Popen[str], list[str]]
) -> None:
    process, files = owner
    assert len(files) == 2 and all(map(Path.exists, map(Path, files)))
    assert not leftovers.unused_segments().keys() & set(files), "they are in use"
    process.communicate("\n")
    left = leftovers.unused_segments()
    assert left.keys() >= set(files)
    assert 2**20 <= left[files[0]] < 2**22 and left[files[1]] <= 2**16
    finding = doctor("leftovers")
    command, *paths = shlex.split(finding["remedy"])
    assert finding["status"] == "warning" and command == "rm" and set(paths) >= set(files)
    assert finding["message"].startswith("no process that can be seen here uses ")
    assert finding["message"].endswith("where containers share /dev/shm, run this check in each of them")


def test_files_of_others_are_left_alone(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "verl_weights_0").write_bytes(bytes(2**20))
    (tmp_path / "psm_1").write_bytes(bytes(2**20))
    (tmp_path / "dump.rdb").touch()
    monkeypatch.setattr(leftovers, "_FOLDER", tmp_path)
    assert set(leftovers.unused_segments()) == {f"{tmp_path}/psm_1", f"{tmp_path}/verl_weights_0"}
    with (tmp_path / "psm_1").open(), (tmp_path / "verl_weights_0").open():
        assert leftovers.unused_segments() == {}, "they are open"
    monkeypatch.setattr("os.getuid", lambda: -1)
    assert doctor("leftovers")["status"] == "ok"


def test_a_system_without_shared_memory(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leftovers, "_FOLDER", tmp_path / "none")
    assert doctor("leftovers")["status"] == "skipped"
