"""Lock of a folder: disks that have none."""

import errno
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.experience import StoreError
from verl_comprl.experience.store.folder import lock_bank
from verl_comprl.folder_lock import FolderInUse, FolderLock, FolderLockError


def lock(folder: Path, name: str = "lock") -> FolderLock:
    return FolderLock(folder, what="the folder", setting="some.setting", name=name)


def test_a_disk_without_locks_is_no_open_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.folder_lock.fcntl.lockf", refuse)
        with pytest.raises(
            FolderLockError, match=r"the folder .* cannot be used: \[Errno 37\] No locks available"
        ) as failed:
            lock(tmp_path)
        assert not isinstance(failed.value, FolderInUse)
        with pytest.raises(StoreError, match=r"bank folder .* cannot be used: \[Errno 37\] No locks available"):
            lock_bank(tmp_path)
    lock(tmp_path).release()


def test_one_owner_per_name_in_one_process(tmp_path: Path) -> None:
    """The kernel's lock knows no two owners in one process."""
    first = lock(tmp_path)
    with pytest.raises(FolderInUse, match=r"the folder .* is already open in this process"):
        lock(tmp_path)
    lock(tmp_path, "another").release()
    first.release()
    lock(tmp_path).release()
