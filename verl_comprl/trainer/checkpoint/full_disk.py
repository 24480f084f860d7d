"""Finds out whether a checkpoint could not be written because the disk, or the user's share of it, is full.

The error alone does not tell: ``torch.save`` raises a ``RuntimeError`` about a stream, and an error of a Ray worker has
lost its number. So what is left of the disk is tried as well, in the way that a quota notices.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

_FULL = (ENOSPC, EDQUOT)
_PROBE = ".room"
_ROOM = 16 * 2**20
"""Bytes: more than is left where a write has failed for lack of room, and less than a run needs in any case."""


def is_full(error: BaseException, folder: Path) -> bool:
    """Return whether a save failed for lack of room.

    Args:
        error: What was raised, here or in a worker.
        folder: On the disk, with what was written still there.
    """
    return any(getattr(cause, "errno", None) in _FULL for cause in _causes(error)) or not _has_room(folder)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it; Ray keeps a worker's own error as ``cause``."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__, getattr(found, "cause", None)]


def _has_room(folder: Path) -> bool:
    probe = folder / _PROBE
    try:
        with probe.open("wb") as file:
            file.write(os.urandom(_ROOM))  # a file system may compress anything else to nothing
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in _FULL
    finally:
        with suppress(OSError):
            probe.unlink()
    return True
