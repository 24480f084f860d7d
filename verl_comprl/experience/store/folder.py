"""Folders of banks in files: the lock of one, and which can become one."""

from pathlib import Path

from verl_comprl.experience.store.errors import StoreError
from verl_comprl.folder_lock import FolderInUse, FolderLock, FolderLockError

LOCK = "lock"
_OWN = {LOCK, "bank.json.tmp", "address.json", "address.json.tmp"}


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


def check_adoptable(folder: Path) -> None:
    """Check that a new bank can be put into ``folder``: later openings remove what they take for their own.

    Raises:
        StoreError: If it holds other files.
    """
    if foreign := {path.name for path in folder.iterdir()} - _OWN:
        raise StoreError(
            f"{folder} holds other files ({min(foreign)}) and is not an experience bank; choose an empty or new folder"
        )
