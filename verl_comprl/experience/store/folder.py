"""Folder lock and atomic file replacement.

Owns the lock file and the writing of files. Their content is decided in ``embedded`` and ``transfer.snapshot``.
"""

import fcntl
import os
from pathlib import Path

from verl_comprl.experience.store.errors import StoreError

_held: dict[tuple[int, int], int] = {}
"""Process that holds a lock, by device and inode of the folder."""


class FolderLock:
    """Exclusive lock on a folder; the kernel releases it when the process ends, also if forks of it live on."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, creating it if needed.

        Raises:
            StoreError: If it is locked, by this process or another, or cannot be created.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._key = (folder.stat().st_dev, folder.stat().st_ino)
            if _held.get(self._key) == os.getpid():
                raise StoreError(f"experience bank folder {folder} is already open in this process, {os.getpid()}")
            # No link: the folder may be somebody else's, and the file that a link names would be overwritten.
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise StoreError(f"experience bank folder {folder} cannot be used: {error}") from error
        try:
            # Not flock, which a fork would keep after the death of its parent. This one knows no two owners in one
            # process, and goes with any descriptor of the file that the process closes: hence the table above.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # one of these, by the system
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreError(
                f"experience bank folder {folder} is already open in process {owner}; "
                "close that run or choose another comprl.bank.path"
            ) from error
        except OSError as error:  # ENOLCK, for example, on a network's disk without locks
            os.close(descriptor)
            raise StoreError(f"experience bank folder {folder} cannot be used: {error}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        _held[self._key] = os.getpid()

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        _held.pop(self._key, None)


_OWN = {"lock", "bank.json.tmp", "manager.json", "manager.json.tmp"}


def check_adoptable(folder: Path) -> None:
    """Check that a new bank can be put into ``folder``: later openings remove what they take for their own.

    Raises:
        StoreError: If it holds other files.
    """
    if foreign := {path.name for path in folder.iterdir()} - _OWN:
        raise StoreError(
            f"{folder} holds other files ({min(foreign)}) and is not an experience bank; choose an empty or new folder"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # what a crash has left, or a link, through which another file would be written
    with temporary.open("xb") as file:
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
