"""Exclusive lock on a folder: of a bank in files, and of a run."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_held: dict[tuple[int, int, str], int] = {}
"""Process that holds a lock, by device and inode of the folder and name of the lock."""


class FolderLockError(RuntimeError):
    """The folder cannot be created or locked."""


class FolderInUse(FolderLockError):
    """Another process, or another part of this one, has the folder."""


class FolderLock:
    """Exclusive lock on a folder; the kernel releases it when the process ends, also if forks of it live on."""

    def __init__(self, folder: Path, *, what: str, setting: str, name: str) -> None:
        """Lock the folder, creating it if needed.

        Args:
            folder: The folder.
            what: What it is, for messages.
            setting: Setting that names it, for messages.
            name: File in it that is locked.

        Raises:
            FolderInUse: If it is locked, by this process or another.
            FolderLockError: If it cannot be created or locked.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._key = (folder.stat().st_dev, folder.stat().st_ino, name)
            if _held.get(self._key) == os.getpid():
                raise FolderInUse(f"{what} {folder} is already open in this process, {os.getpid()}")
            # No link: the folder may be somebody else's, and the file that a link names would be overwritten.
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise FolderLockError(f"{what} {folder} cannot be used: {error}") from error
        try:
            # Not flock, which a fork would keep after the death of its parent. This one knows no two owners in one
            # process, and goes with any descriptor of the file that the process closes: hence the table above.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # one of these, by the system
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise FolderInUse(
                f"{what} {folder} is already open in process {owner}; end that first, or choose another {setting}"
            ) from error
        except OSError as error:  # ENOLCK, for example, on a network's disk without locks
            os.close(descriptor)
            raise FolderLockError(f"{what} {folder} cannot be used: {error}") from error
        with suppress(OSError):  # a full disk: the number is for messages only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        _held[self._key] = os.getpid()

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        _held.pop(self._key, None)
