"""Folder of the files and logs of a Ray that is started here, private to the user where they show secrets."""

import os
import stat
from pathlib import Path
from typing import Any

_SHARED = Path("/tmp")
"""Not that of ``TMPDIR``, which may be long: the names of Ray's sockets are."""

_FOR_OTHERS = stat.S_IXGRP | stat.S_IXOTH


def use_private_folder() -> None:
    """Let Ray have its files in a folder that is this user's alone, unless ``RAY_TMPDIR`` names one.

    It is around Ray's own folder: every process of Ray gives that one, and those of its sessions, to all users.

    Raises:
        RuntimeError: If another user has taken its name.
    """
    if os.environ.get("RAY_TMPDIR"):
        return
    folder = _SHARED / f"comprl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise RuntimeError(f"{folder} is not a folder of this user; export RAY_TMPDIR with one for Ray's files")
    folder.chmod(0o700)
    os.environ["RAY_TMPDIR"] = str(folder)


def session_is_private() -> bool:
    """Return whether other users of this machine are kept from the logs of its part of the Ray cluster."""
    from ray._private import worker

    node: Any = worker.global_worker.node
    session = Path(node.get_session_dir_path())
    return any(not folder.stat().st_mode & _FOR_OTHERS for folder in (session, *session.parents))
