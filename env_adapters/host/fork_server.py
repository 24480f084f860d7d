"""``python -m env_adapters.host.fork_server FD``: forks environment processes that have imported their family already.

Importing an engine takes seconds and hundreds of megabytes; a fork of a process that has done it takes milliseconds and
shares them. The fork_server has one thread and no environment, so forking it is safe, which forking the host is not.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from env_adapters.host.wire import encode, receive_blocking
from env_adapters.host.worker import Slot, raised_by_environment
from env_adapters.registry import environment_class

_PR_SET_PDEATHSIG = 1

_NICENESS = 19
"""The lowest priority: however many environments are busy, its event loop runs when it has something to do."""


def main(arguments: Sequence[str]) -> None:
    """Serve the host on the inherited socket until it closes it.

    A request is a family's name, with the socket of the new process as its ancillary data; the answer is the process
    id, or the text of the error that importing raised.
    """
    os.nice(_NICENESS)
    os.dup2(2, 1)  # engines print; standard output may be somebody's data
    control = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
        if not request:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            answer = _fork(request.decode(), control, connection)
        control.sendall(encode(answer))


def _fork(name: str, control: socket.socket, connection: socket.socket) -> int | str:
    try:
        environment_class(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    fork_server = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        control.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getppid() == fork_server:
            serve(connection)
        status = 0
    finally:
        os._exit(status)  # never back into the fork_server's loop


def serve(connection: socket.socket) -> None:
    """Carry out the host's requests, ``[method, *arguments]``, until it hangs up; an error is an answer too."""
    slot = Slot()
    with suppress(EOFError, ConnectionError):
        while True:
            method, *arguments = receive_blocking(connection)
            connection.sendall(_answer(slot, method, arguments))


def _answer(slot: Slot, method: str, arguments: list[Any]) -> bytes:
    try:
        return encode({"result": slot.handle(method, *arguments)})
    except Exception as error:
        return encode({"error": raised_by_environment(error)})


if __name__ == "__main__":
    main(sys.argv[1:])
