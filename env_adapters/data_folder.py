"""Where a family keeps files that it makes or that the user has put there.

Owns the place and that a folder is made once, also when many processes ask for it at the same time.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

VARIABLE = "COMPRL_DATA"


def data_folder(name: str, build: Callable[[Path], None]) -> Path:
    """Return ``$COMPRL_DATA/name`` (default ``~/.cache/verl-comprl/name``), built if it is not there yet.

    Args:
        name: Name of the folder; it should say what the content is made from, such as a version.
        build: Fills an empty folder. The result appears under its name only when complete.
    """
    root = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "verl-comprl")
    folder = root / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():  # else another process was first
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(folder)
    return folder
