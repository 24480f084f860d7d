"""Lock of a run's folder, so that a second start of the same run leaves the files of the first alone."""

from collections.abc import Callable
from pathlib import Path

from verl_comprl.folder_lock import FolderInUse, FolderLock, FolderLockError

LOCK = "run.lock"


def lock_run(folder: Path, tell: Callable[[str], object]) -> FolderLock | None:
    """Lock the folder of a run until its process ends or the lock is released.

    Args:
        folder: ``trainer.default_local_dir``.
        tell: Called with a line if the disk knows no locks, as some networks' disks; the run then has none.

    Raises:
        FolderInUse: If another run has it.
    """
    try:
        return FolderLock(folder, what="the run's folder", setting="trainer.default_local_dir", name=LOCK)
    except FolderInUse:
        raise
    except FolderLockError as error:
        tell(f"{error}; a second run in it would not be noticed")
        return None
