"""Lock of a bank's folder: whose it is, and disks that have none."""

import errno
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.experience import StoreError
from verl_comprl.experience.store.folder import FolderLock


def test_a_disk_without_locks_is_no_open_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.experience.store.folder.fcntl.lockf", refuse)
        with pytest.raises(StoreError, match=r"cannot be used: \[Errno 37\] No locks available"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()
