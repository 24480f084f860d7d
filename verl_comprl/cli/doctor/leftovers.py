"""Check for shared memory that killed processes have left: it stays, with its memory, until somebody removes it."""

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from verl_comprl.cli.doctor.finding import Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup

_FOLDER = Path("/dev/shm")
_PATTERNS = ("psm_*", "verl_weights_*", "sem.mp-*", "sem.loky-*", "torch_*", "nccl-*")
"""File name patterns of shared memory that a run creates: Python's segments (of vLLM and verl), verl's of weights
on their way to a server, semaphores of Python and joblib, tensors, NCCL's."""


def check_leftovers(_: Setup) -> str:
    """Check that no segment or semaphore of this user is left without a process that can be seen."""
    if not _FOLDER.is_dir():
        raise Skipped(f"there is no {_FOLDER}")
    found = unused_segments()
    if not found:
        return f"nothing in {_FOLDER} is left of killed processes"
    # A segment is as large as it may become: what it takes is what has been written to.
    used = sum(found.values()) / 2**20
    raise Problem(
        f"no process that can be seen here uses {len(found)} of this user's segments and semaphores in {_FOLDER}, "
        f"which take {used:.1f} MiB of memory; where containers share {_FOLDER}, run this check in each of them",
        shlex.join(["rm", *sorted(found)]),
        warning=True,
    )


def unused_segments() -> dict[str, int]:
    """Return the files of shared memory that this user has and no process has mapped or open, with the bytes they take.

    Processes of other containers, which may share the folder, are not seen.
    """
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for path in (path for pattern in _PATTERNS for path in _FOLDER.glob(pattern)):
        with suppress(FileNotFoundError):  # removed since
            status = path.lstat()
            if status.st_uid == os.getuid():
                found[status.st_dev, status.st_ino] = str(path), status.st_blocks * 512
    for file in files_in_use() if found else ():
        found.pop(file, None)
    return dict(found.values())


def files_in_use() -> Iterator[tuple[int, int]]:
    """Yield device and inode of the files that processes have mapped or open, as far as they can be seen.

    Not their names: a semaphore is mapped under a name that it had before its own.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (process / "maps").read_text("utf-8", "replace").splitlines():
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                major, minor = (int(number, 16) for number in device.split(":"))
                yield os.makedev(major, minor), int(inode)
        with suppress(OSError):
            for file in (process / "fd").iterdir():
                with suppress(OSError):  # closed since
                    status = file.stat()
                    yield status.st_dev, status.st_ino
