"""Files that last: atomic replacement, names that survive a power loss, patience with a disk that fails for moments."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that prove that a file is not there."""

PAUSES = (0.5, 1.5, 3.0)
"""Seconds between the attempts to read what a disk does not give at present."""


def patiently(read: Callable[[], T]) -> T:
    """Return what ``read`` returns, which is called again after ``PAUSES`` while the disk keeps it from reading.

    Args:
        read: Must begin anew each time.

    Raises:
        OSError: The last one; one of ``GONE``, at once.
        MemoryError: If there is too little memory each time.
    """
    for pause in PAUSES:
        try:
            return read()
        except GONE:
            raise
        except (OSError, MemoryError):
            time.sleep(pause)
    return read()


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


def dated(path: Path) -> Path:
    """Return the name, with the present time, under which a file or folder of a run is set aside."""
    return path.with_name(f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}")


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
