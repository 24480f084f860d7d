"""Files that vLLM's servers, environments and Ray leave behind when they end, where Ray is started here."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from env_adapters.host.temporary import TEMPORARY

SOCKETS = "VLLM_RPC_BASE_PATH"
"""Environment variable with the folder of vLLM's sockets, each of which has a UUID for its name."""

_LONGEST = 107 - 37
"""Bytes of the folder's name: a Unix socket's name has at most 107."""

_folders: list[Path] = []


def make_folders() -> dict[str, str]:
    """Make folders for vLLM's sockets and environments' temporary files; returns their variables, for Ray's workers.

    There are none where the user has named one, nor for sockets whose names would get too long.
    """
    found: dict[str, str] = {}
    short = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST - len("/comprl-sockets-12345678")
    for variable, prefix in [(SOCKETS, "comprl-sockets-")] * short + [(TEMPORARY, "comprl-environments-")]:
        if not os.environ.get(variable):
            found[variable] = tempfile.mkdtemp(prefix=prefix)
            _folders.append(Path(found[variable]))
    return found


def note_sockets_of_ray() -> None:
    """Note the folder of Ray's sockets, before a Ray that was started here ends."""
    with suppress(Exception):  # Ray's own names: what fails here must not keep a process from ending
        from ray._private import worker

        node: Any = worker.global_worker.node
        if node is not None and node.head:
            _folders.append(Path(node.get_sockets_dir_path()))


def remove_folders() -> None:
    """Remove the folders of a Ray that has ended."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
