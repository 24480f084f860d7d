"""Python processes that end with the one that has started them."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl

Process = subprocess.Popen[bytes]


def start(*command: str, environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None) -> Process:
    """Start Python with ``command``; a terminal's Ctrl-C does not reach it, and SIGTERM does if this process dies.

    Only for the main thread: the kernel sends that signal when the thread ends that has started the process.

    Args:
        command: Arguments of Python.
        environment: Its variables; None for those of this process.
        output: File for what it prints; None leaves that on the terminal.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died in the meantime
            os._exit(1)

    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        start_new_session=True,
        preexec_fn=end_with_parent,
        stdout=output,
        stderr=output,
    )


def kill_group(process: Process) -> None:
    """Kill what ``start`` has started, with its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(ip: str) -> int:
    """Return a TCP port that nobody uses at ``ip``."""
    with socket.socket() as found:
        found.bind((ip, 0))
        return found.getsockname()[1]
