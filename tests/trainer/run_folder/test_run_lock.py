"""A run's folder belongs to one run at a time, whatever its arm."""

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.folder_lock import FolderInUse
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.run_folder.lock import lock_run
from verl_comprl.trainer.trainer import ComplementarySync

OTHER_RUN = """
import sys
from pathlib import Path
from verl_comprl.trainer.run_folder.lock import lock_run
lock = lock_run(Path(sys.argv[1]), print)
print("locked", flush=True)
sys.stdin.read()
"""


def baseline(folder: Path) -> Any:
    trainer: Any = object.__new__(ComplementarySync)
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})
    trainer.progress = SimpleNamespace(note=pytest.fail)
    trainer.experience_runtime, trainer._in_order, trainer._lock = NoExperienceRuntime(), False, None
    return trainer


def test_a_second_start_ends_before_it_touches_anything(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 7}\n')
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_RUN, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout and other.stdout.readline() == "locked\n"
        trainer = baseline(tmp_path)
        with pytest.raises(FolderInUse, match=rf"already open in process {other.pid}; end that first, .*local_dir"):
            trainer._setup()
        trainer.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.lock"]
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 7}\n'
    finally:
        other.kill()
        other.communicate()
    lock = lock_run(tmp_path, pytest.fail)  # what a killed run had is free
    assert lock is not None
    lock.release()


def test_a_run_that_has_ended_gives_its_folder_back(tmp_path: Path) -> None:
    for _ in range(2):
        trainer = baseline(tmp_path)
        trainer._lock = lock_run(tmp_path, pytest.fail)
        with pytest.raises(FolderInUse, match="is already open in this process"):
            lock_run(tmp_path, pytest.fail)
        trainer.close()


def test_a_disk_without_locks_costs_the_check_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("verl_comprl.folder_lock.fcntl.lockf", refuse)
    told: list[str] = []
    assert lock_run(tmp_path, told.append) is None
    assert "No locks available; a second run in it would not be noticed" in told[0]
