"""Lock of the queue's folder, so that a second run with the same one leaves the episodes of the first alone."""

import logging
from pathlib import Path

from verl_comprl.config.reading import ConfigError
from verl_comprl.folder_lock import FolderInUse, FolderLock, FolderLockError

logger = logging.getLogger(__name__)

LOCK = "queue.lock"


def lock_queue(folder: Path) -> FolderLock | None:
    """Lock the folder of the queue until its process ends or the lock is released.

    Args:
        folder: ``comprl.queue.folder``.

    Returns:
        The lock; None on a disk that knows none or is full, which costs the check and not the run.

    Raises:
        ConfigError: If another run has it.
    """
    try:
        return FolderLock(folder, what="the queue's folder", setting="comprl.queue.folder", name=LOCK)
    except FolderInUse as error:
        raise ConfigError(str(error)) from error
    except FolderLockError as error:
        logger.warning("%s; a second run with it would not be noticed", error)
        return None
