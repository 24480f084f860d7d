"""Data folders of the environment families below ``$COMPRL_DATA``.

Owns their location, and builds each folder exactly once even if several processes need it at the same time.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

VARIABLE = "COMPRL_DATA"


def data_folder(name: str, build: Callable[[Path], None]) -> Path:
    """Return ``$COMPRL_DATA/name`` (default ``~/.cache/verl-comprl/name``), building it if it does not exist.

    Args:
        name: Name of the folder; should identify the content, for instance by a version.
        build: Fills an empty folder, which gets its final name only when it is complete.
    """
    root = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "verl-comprl")
    folder = root / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():  # otherwise another process has built it meanwhile
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(folder)
    return folder
