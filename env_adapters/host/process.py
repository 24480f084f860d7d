"""An environment in a process of its own, which can be killed.

Owns the host's end: the fork_server that forks such processes, and the conversation with each of them.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from env_adapters.host.wire import encode, receive, receive_blocking
from env_adapters.host.worker import EnvironmentFailure

_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

_IMPORT_SECONDS = 300.0
"""Longest that importing a family may take."""


class ProcessWorker:
    """The host's end of one process."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        """Take over a process; ``connection`` is the socket to it."""
        self.pid = pid
        # Names this process for as long as the descriptor is open, whereas a number may be given to another one.
        self._handle = os.pidfd_open(pid)
        self._socket = connection
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer, as ``Worker``."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._socket)
            reader, writer = self._streams
            writer.write(encode([method, *arguments]))
            await writer.drain()
            answer = await receive(reader)
        except (EOFError, ConnectionError) as error:
            raise EnvironmentFailure(f"the environment's process {self.pid} died in {method}()") from error
        if "error" in answer:
            raise EnvironmentFailure(**answer["error"])
        return answer["result"]

    def stop(self) -> None:
        """Kill the process."""
        if self._handle < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.close(self._handle)
        self._handle = -1
        if self._streams is not None:
            with suppress(RuntimeError):  # the loop may be closed by now
                self._streams[1].close()
        else:
            self._socket.close()


class ForkServer:
    """Starts environment processes. Its own process starts with the first of them, and anew after it died."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def fork(self, name: str) -> ProcessWorker:
        """Return a new process that has imported the family ``name``.

        Raises:
            EnvironmentFailure: If the family cannot be imported, or importing it kills the process.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            return await loop.run_in_executor(None, self._fork, name)

    def close(self) -> None:
        """Stop the fork_server, and with it every process that it has forked."""
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    def _fork(self, name: str) -> ProcessWorker:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [name.encode()], [theirs.fileno()])
                answer = receive_blocking(self._control)
            except (EOFError, OSError) as error:
                ours.close()
                self.close()
                raise EnvironmentFailure(f"importing environment {name!r} killed the process ({error})") from error
        if isinstance(answer, str):
            ours.close()
            raise EnvironmentFailure(answer)
        return ProcessWorker(answer, ours)

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_IMPORT_SECONDS)
        # What can be imported here can be imported there.
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "env_adapters.host.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                # Linux shares the processors out by session (autogroup): all environments together then get no more
                # than the event loop can have.
                start_new_session=True,
            )
