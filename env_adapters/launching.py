"""Starts processes that ask the kernel to be killed when this one dies (``PR_SET_PDEATHSIG``)."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any


@cache
def _launcher(process_id: int) -> ThreadPoolExecutor:
    """Return the thread that starts them.

    The kernel kills them when the thread that started them ends, so this one must live as long as the process. The
    process id is part of the cache's key because threads do not survive a fork.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="launcher")


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a thread that lives as long as this process.

    Args:
        command: Its command line.
        **options: Of ``subprocess.Popen``.
    """
    return _launcher(os.getpid()).submit(subprocess.Popen, command, **options).result()
