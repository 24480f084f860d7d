"""The queue's folder belongs to one manager at a time, which holds it until it closes or its process ends."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.credit import ONE_STEP
from verl_comprl.extractor.queue import WAITING
from verl_comprl.manager import actor
from verl_comprl.manager.opening import Opening
from verl_comprl.manager.queue_lock import lock_queue
from verl_comprl.manager.reported import REPORTED

OTHER_RUN = """
import sys
from pathlib import Path
from verl_comprl.manager.queue_lock import lock_queue
lock = lock_queue(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_run(folder: Path) -> Iterator[int]:
    """Let a process have ``folder``; it is killed in the end."""
    command = [sys.executable, "-c", OTHER_RUN, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "locked\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def make_manager(embedder: Any) -> Any:
    manager: Any = actor._ManagerActor()
    manager._embedder, manager._tokenizer = embedder, None
    return manager


async def test_a_second_run_is_refused_before_it_removes_anything(
    tmp_path: Path, embedder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has the folder at once when the first one has been killed or has closed, or its own opening has failed."""
    monkeypatch.setattr(actor, "_actor_name", lambda run: run)
    monkeypatch.setattr(actor, "write_address", lambda *_: None)  # it is of a Ray actor
    monkeypatch.setattr(actor, "relieve_garbage_collector", lambda: None)
    queue = tmp_path / "queue"

    async def open_(manager: Any, name: str, *, killed_in: int | None = None) -> Any:
        config = ComprlConfig(bank=BankConfig(path=str(tmp_path / name)), queue=QueueConfig(folder=str(queue)))
        opening = Opening(keep_content=killed_in is not None, killed_in=killed_in)
        await manager.open(config, opening, run=str(tmp_path / name), seed=0, settling=ONE_STEP)

    manager = make_manager(embedder)
    with other_run(queue) as pid:
        files = [queue / WAITING, queue / REPORTED]
        for file in files:
            file.write_text("of the first run\n")
        with pytest.raises(
            ConfigError,
            match=rf"already open in process {pid}; end that first, or choose another comprl\.queue\.folder",
        ):
            await open_(manager, "b")
        assert [file.read_text() for file in files] == ["of the first run\n"] * 2
    await open_(manager, "b")
    await open_(manager, "b", killed_in=1)  # again, as after what comes behind the opening has failed
    another = make_manager(embedder)
    with pytest.raises(ConfigError, match="already open in this process"):
        await open_(another, "c")
    await manager.close()
    await open_(another, "c")
    await another.close()


def test_a_disk_without_locks_costs_the_check_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("verl_comprl.folder_lock.fcntl.lockf", refuse)
    assert lock_queue(tmp_path) is None
    assert "No locks available; a second run with it would not be noticed" in caplog.text
