"""Server process that forks environment processes whose family is already imported.

Importing an engine takes seconds and hundreds of megabytes; forking a process that has imported it takes milliseconds
and shares that memory. The fork server has a single thread and creates no environment, so it is safe to fork. The host,
with its event loop and threads, is not.

Usage: ``python -m env_adapters.host.fork_server FD PARENT``, where FD is the inherited descriptor of a socket to the
host, and PARENT the host's process, with which it ends, also in the middle of an import.
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
"""Lowest priority. Forked processes inherit it, so that busy environments do not delay the host's event loop."""


def main(arguments: Sequence[str]) -> None:
    """Answer the host's requests on the inherited socket until the host closes it.

    A request is the name of an environment, with the socket of the new process as ancillary data. The answer is the
    process id as ``result``, or the ``error`` that prevented one. No error ends the loop: all processes end with this
    one.
    """
    if not _ends_with(int(arguments[1])):
        return
    os.nice(_NICENESS)
    os.dup2(2, 1)  # engines print, but the host's standard output may carry data
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)  # programs that an environment starts must not have it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the host
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps exited children
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
        if not request:
            return
        try:
            if not descriptors:
                raise OSError("no file descriptor is left for its socket")
            with socket.socket(fileno=descriptors[0]) as connection:
                connection.set_inheritable(False)
                environment_class(request.decode())
                answer: dict[str, Any] = {"result": _fork(control, connection)}
        except BaseException as error:  # SystemExit of an import, too; no process can be started
            answer = {"error": raised_by_environment(error)}
        control.sendall(encode(answer))


def _fork(control: socket.socket, connection: socket.socket) -> int:
    fork_server = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        control.close()
        os.setpgid(0, 0)  # what it starts is killed with it
        # A fork of an environment would read and answer its requests.
        os.register_at_fork(after_in_child=connection.close)
        # If SIGCHLD stayed ignored, the exit status of programs that an environment starts would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _ends_with(fork_server):
            serve(connection)
        status = 0
    finally:
        os._exit(status)  # the child must never return to the fork server's loop


def _ends_with(parent: int) -> bool:
    """Let the kernel kill this process when its parent dies; returns whether that lives."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent  # if it died before, its death signal will never come


def serve(connection: socket.socket) -> None:
    """Answer the host's requests ``[method, *arguments]`` until it disconnects; exceptions are sent as answers."""
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
