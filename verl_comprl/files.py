"""Durable changes of files: atomic replacement, names that survive a power loss, and names for what is set aside."""

import os
import time
from pathlib import Path


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
