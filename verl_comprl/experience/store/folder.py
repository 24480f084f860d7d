"""Folder lock and atomic file replacement.

Owns the lock file and the writing of files. Their content is decided in ``embedded`` and ``transfer.snapshot``.
"""

import fcntl
import os
from pathlib import Path

from verl_comprl.experience.store.base import StoreError


class FolderLock:
    """Exclusive lock on a folder by ``flock``; the kernel releases it when the process and all its forks have ended."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, creating it if needed.

        Raises:
            StoreError: If it is locked, by this process or another, or cannot be created.
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
        """Release the lock."""
        os.close(self._descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        # Before the rename: after a power loss the new name could otherwise refer to data that was never written.
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
