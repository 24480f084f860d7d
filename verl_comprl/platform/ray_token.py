"""Ray's token: who may read it, and whether Ray asks for it.

Ray asks processes that connect for the token of ``~/.ray/auth_token``, unless ``RAY_AUTH_MODE=disabled``. It writes the
file with the permissions of the umask, readable for all where the home directory is.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def protect_token() -> None:
    """Take the token, and the folder in which Ray will write it, from other users, as far as both are this user's.

    The folder as well, and before: a file that Ray makes in it is then never readable for others.
    """
    with suppress(OSError, RuntimeError):  # no home, or none that can be written: Ray says so where it needs the file
        folder = Path.home() / ".ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in (folder, folder / "auth_token"):
            _take_from_others(path)


def _take_from_others(path: Path) -> None:
    status = path.stat()
    if status.st_uid == os.getuid() and status.st_mode & _FOR_OTHERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~_FOR_OTHERS)


def token_is_disabled() -> bool:
    """Return whether a Ray that this process starts lets everybody in."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled"
