"""The folder an embedded bank lives in: who holds it, and files that are either old or new but never half.

Owns the lock file and atomic writing. What the files contain is up to ``embedded_store`` and ``snapshot``.
"""

import fcntl
import os
from pathlib import Path

from verl_comprl.experience.store.base import StoreError


class FolderLock:
    """Exclusive hold on a folder, by ``flock``: the kernel ends it with the process, so it is never stale."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, creating it if needed.

        Raises:
            StoreError: If this or another process holds it, or it cannot be created.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"experience bank folder {folder} cannot be used: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreError(
                f"experience bank folder {folder} is already open in process {owner}; "
                "close that run or choose another comprl.bank.path"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the folder."""
        os.close(self._descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable what was created, renamed or removed in ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
