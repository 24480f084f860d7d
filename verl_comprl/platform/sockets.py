"""Sockets in the file system that vLLM's servers and Ray leave behind, where Ray is started here."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "VLLM_RPC_BASE_PATH"
"""Environment variable with the folder of vLLM's sockets, each of which has a UUID for its name."""

_LONGEST = 107 - 37
"""Bytes of the folder's name: a Unix socket's name has at most 107."""

_folders: list[Path] = []


def make_socket_folder() -> dict[str, str]:
    """Make a folder for vLLM's sockets; returns the variable that names it, for Ray's workers.

    It is empty where the user has named a folder, or where names of sockets would get too long.
    """
    place = tempfile.gettempdir()
    if os.environ.get(VARIABLE) or len(os.fsencode(place)) > _LONGEST - len("/comprl-sockets-12345678"):
        return {}
    _folders.append(Path(tempfile.mkdtemp(prefix="comprl-sockets-", dir=place)))
    return {VARIABLE: str(_folders[-1])}


def note_sockets_of_ray() -> None:
    """Note the folder of Ray's sockets, before a Ray that was started here ends."""
    with suppress(Exception):  # Ray's own names: what fails here must not keep a process from ending
        from ray._private import worker

        node: Any = worker.global_worker.node
        if node is not None and node.head:
            _folders.append(Path(node.get_sockets_dir_path()))


def remove_sockets() -> None:
    """Remove the folders of a Ray that has ended."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
