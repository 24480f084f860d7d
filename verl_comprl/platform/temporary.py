"""Files that vLLM's servers, environments and Ray leave behind when they end, where Ray is started here."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from env_adapters.host.temporary import LONGEST, PREFIX, TEMPORARY

SOCKETS = "VLLM_RPC_BASE_PATH"
"""Environment variable with the folder of vLLM's sockets, each of which has a UUID for its name."""

_PREFIX = "comprl-sockets-"
_LONGEST = 107 - 37 - len(f"/{_PREFIX}12345678")
"""Bytes of a folder in which one can be made: a Unix socket's name has at most 107."""

_folders: list[Path] = []


def make_folders() -> dict[str, str]:
    """Make folders for vLLM's sockets and environments' temporary files; returns their variables, for Ray's workers.

    There are none where the user has named one, or the names of sockets in them would get too long.
    """
    found: dict[str, str] = {}
    length = len(os.fsencode(tempfile.gettempdir()))
    # In the one of environments, each host makes one.
    of_environments = LONGEST - len(f"/{PREFIX}12345678")
    for variable, prefix, longest in (SOCKETS, _PREFIX, _LONGEST), (TEMPORARY, PREFIX, of_environments):
        if length <= longest and not os.environ.get(variable):
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
