"""Folders of banks in files: the lock of one, the room on its disk, and which can become one."""

import shutil
from pathlib import Path

from verl_comprl.experience.store.errors import StoreError, StoreUnavailable
from verl_comprl.folder_lock import FolderInUse, FolderLock, FolderLockError

LOCK = "lock"
IDENTITY = "bank.json"
"""File that makes a folder a bank: its schema, its embedder, its live shard."""
ROOM = 256 * 2**20
"""Bytes that must be free before the engine changes a bank.

It maps sparse files into memory: two of its log, and one each of payloads, vectors and quantised vectors, of 32 MiB,
and indexes of some 20 MiB. Where the disk has nothing left for a hole in one, the kernel ends the process (SIGBUS).
Writes fill the holes; on a tmpfs, opening does. The rest is for what others write between the look and the change.
"""
ROOM_TO_OPEN = 96 * 2**20
"""Bytes that must be free before it opens a bank, so that one can be read where it cannot be changed.

Of an existing one, opening fills 58 MiB of holes on a tmpfs and nothing elsewhere.
"""
_OWN = {LOCK, f"{IDENTITY}.tmp", "address.json", "address.json.tmp"}


def lock_bank(folder: Path) -> FolderLock:
    """Lock the folder of a bank.

    Raises:
        StoreError: If another process, or another part of this one, has it, or if it cannot be locked.
    """
    try:
        return FolderLock(folder, what="experience bank folder", setting="bank (comprl.bank.path, --path)", name=LOCK)
    except FolderLockError as error:
        hint = "" if isinstance(error, FolderInUse) else "; set comprl.bank.path to a folder on a local disk"
        raise StoreError(f"{error}{hint}") from error


def check_room(folder: Path, *, to_open: bool = False) -> None:
    """Check that the engine can open or change the bank in ``folder``.

    Args:
        folder: That of the bank.
        to_open: Whether it exists, and is only opened.

    Raises:
        StoreUnavailable: If its disk is full, or nearly so.
    """
    room = ROOM_TO_OPEN if to_open else ROOM
    if (free := shutil.disk_usage(folder).free) < room:
        said = f"{free / 2**20:.0f} MiB are free, and {room / 2**20:.0f} are needed"
        raise StoreUnavailable(f"experience bank {folder}: the disk is full: {said}; make room on it")


def check_bank_folder(folder: Path) -> None:
    """Check that ``folder`` has a bank.

    Raises:
        StoreError: If it has none; names that of a run if it is the folder of one.
    """
    if not (folder / IDENTITY).exists():
        raise StoreError(f"{folder} is not an experience bank: it has no bank.json{_bank_inside(folder)}")


def bank_inside(folder: Path) -> Path | None:
    """Return the bank of a run if this is the folder of one with a bank."""
    return folder / "bank" if (folder / "bank" / IDENTITY).exists() else None


def _bank_inside(folder: Path) -> str:
    inside = bank_inside(folder)
    return f"; {inside} is one" if inside else ""


def check_adoptable(folder: Path) -> None:
    """Check that a new bank can be put into ``folder``: later openings remove what they take for their own.

    Raises:
        StoreError: If it is a file, or holds other files.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file and not an experience bank; choose an empty or new folder")
    if not folder.exists():
        return
    if foreign := {path.name for path in folder.iterdir()} - _OWN:
        raise StoreError(
            f"{folder} holds other files ({min(foreign)}) and is not an experience bank; choose an empty or new folder"
            f"{_bank_inside(folder)}"
        )
