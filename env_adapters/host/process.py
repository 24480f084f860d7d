"""Environments in separate processes, which can be killed.

Owns the host's side: starting the fork server, and communicating with each process that it forks.
"""

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from reprlib import repr as shortened
from typing import Any

from env_adapters.host.temporary import make_temporary_folder
from env_adapters.host.waiting import in_daemon_thread, settle, within
from env_adapters.host.wire import encode, receive, receive_blocking
from env_adapters.host.worker import EnvironmentFailure
from env_adapters.launching import start_process

# Numerical libraries read these when they are loaded. Their thread pools would make the fork server unsafe to fork and,
# with many environments, oversubscribe the processors.
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

_IMPORT_SECONDS = 300.0
"""Time limit for importing a family, and for a new process of it."""

_LAST_WORDS_SECONDS = 1.0
"""For an answer that a process sent before it ended."""

_WHOLE_GROUP = 4
"""Linux's ``PIDFD_SIGNAL_PROCESS_GROUP``, since 6.9."""


class ProcessWorker:
    """The host's side of one environment process."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        """Take over a process; ``connection`` is the socket to it."""
        self.pid = pid
        # The kernel reaps the process as soon as it ends, and its id may then be reused for another process. A pidfd
        # keeps referring to this one, so that ``stop`` never kills another process.
        self._handle = os.pidfd_open(pid)
        self._socket = connection
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer, as ``Worker``."""
        request = encode([method, *arguments])
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._socket)
            return _result(await self._unless_ended(_answer_to(request, *self._streams)))
        except (EOFError, ConnectionError) as error:
            raise EnvironmentFailure(f"the environment's process {self.pid} died in {method}()") from error
        except (ValueError, RecursionError) as error:
            raise EnvironmentFailure(f"the environment's process {self.pid} sent no message: {error}") from error

    async def _unless_ended(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Wait for ``answer`` while the process lives: another one, of C code, may hold its connection open.

        Raises:
            EOFError: If it has ended without an answer.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        receiving = asyncio.ensure_future(answer)
        loop.add_reader(handle := self._handle, settle, ended, None, None)
        try:
            await asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED)
            loop.remove_reader(handle)
            if not receiving.done():
                await asyncio.wait([receiving], timeout=_LAST_WORDS_SECONDS)
            if not receiving.done():
                raise EOFError("it has ended")
            return receiving.result()
        finally:
            loop.remove_reader(handle)
            receiving.cancel()

    def alive(self) -> bool:
        """Return whether the process has not ended, as ``Worker``."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)  # a pidfd becomes readable when its process ends
        return not poll.poll(0)

    def stop(self) -> None:
        """Kill the process, and with it all programs that it has started and not put into groups of their own."""
        if self._handle < 0:
            return
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL, None, _WHOLE_GROUP)
        except OSError:  # an older kernel, or it has just begun and has no group
            if self.alive():  # so that its id is that of no other
                with suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.close(self._handle)
        self._handle = -1
        if self._streams is not None:
            with suppress(RuntimeError):  # the loop may be closed by now
                self._streams[1].transport.abort()  # closing would wait for whoever reads what is not sent
        else:
            self._socket.close()


async def _answer_to(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    writer.write(request)
    await writer.drain()
    return await receive(reader)


def _result(answer: Any) -> Any:
    """Return the result in an answer of a process, which plays untrusted actions and may send anything."""
    if isinstance(answer, dict) and "result" in answer:
        return answer["result"]
    error = answer.get("error") if isinstance(answer, dict) else None
    if not (isinstance(error, dict) and "text" in error and error.keys() <= {"text", "kind", "trace"}):
        raise EnvironmentFailure(f"the environment's process sent neither a result nor an error: {shortened(answer)}")
    raise EnvironmentFailure(**{name: str(value) for name, value in error.items()})


class ForkServer:
    """Starts the processes of a module's families; itself it is started on first use and again after it has died."""

    def __init__(self) -> None:
        """Prepare the object; no process is started yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._remove_temporary: Callable[[], object] = lambda: None
        """Removes its processes' temporary files, which those, being killed, leave behind."""
        self._lock = asyncio.Lock()
        self._changing = threading.Lock()
        """Held while the process is started or ended: threads do so, and whoever closes the host."""
        self._closed = False
        self._has_forked = False

    async def fork(self, name: str) -> ProcessWorker:
        """Return a new process that has imported the family ``name``.

        Raises:
            EnvironmentFailure: If the family cannot be imported, or importing it kills the process.
        """
        return await within(_IMPORT_SECONDS, f"a new process of environment {name!r}", self._fork_alone(name))

    async def _fork_alone(self, name: str) -> ProcessWorker:
        # Answers on the control socket carry no request id, so only one may be outstanding: also one for which nobody
        # waits any more.
        await self._lock.acquire()
        try:
            forking = in_daemon_thread(self._fork, name)
        except RuntimeError:  # no thread can be started
            self._lock.release()
            raise
        forking.add_done_callback(lambda _: self._lock.release())
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_stop)
            raise

    def close(self) -> None:
        """Stop the fork server for good, and with it every process that it has forked."""
        with self._changing:
            self._closed = True
            self._end()

    def _end(self) -> None:
        """Stop the process; ``_changing`` is held."""
        process, control = self._process, self._control
        self._process = self._control = None
        if process is not None and control is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
            process.kill()
            process.wait()
            control.close()
        self._remove_temporary()

    def _running(self) -> socket.socket:
        """Return the control socket of a process that runs."""
        with self._changing:
            if self._closed:
                raise EnvironmentFailure("the host of the environments is closed")
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            assert self._control is not None
            return self._control

    def _fork(self, name: str) -> ProcessWorker:
        try:
            control = self._running()
            ours, theirs = socket.socketpair()
        except OSError as error:  # no process or file descriptor is left
            raise EnvironmentFailure(f"no process of environment {name!r} can be started: {error}") from error
        with ExitStack() as unless_forked:
            unless_forked.callback(ours.close)
            with theirs:
                answer = self._ask(control, name, theirs)
            try:
                pid = _result(answer)
            except EnvironmentFailure:
                if not self._has_forked:
                    with self._changing:
                        self._end()  # of no use: a module that cannot be imported
                raise
            self._has_forked = True
            try:
                worker = ProcessWorker(pid, ours)
            except (OSError, TypeError) as error:
                text = f"the process of environment {name!r} died as soon as it was there, or cannot be used: {error}"
                raise EnvironmentFailure(text) from error
            unless_forked.pop_all()
            return worker

    def _ask(self, control: socket.socket, name: str, theirs: socket.socket) -> Any:
        """Return the fork server's answer; it is ended if it gives none."""
        try:
            socket.send_fds(control, [name.encode()], [theirs.fileno()])
            return receive_blocking(control)
        except (EOFError, OSError, ValueError, RecursionError) as error:
            with self._changing:
                self._end()
            raise EnvironmentFailure(
                f"the fork server died or timed out while importing environment {name!r} ({error})"
            ) from error

    def _start(self) -> None:
        control, theirs = socket.socketpair()
        control.settimeout(_IMPORT_SECONDS)
        # Everything that this process can import must be importable there, including paths added at run time.
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with theirs, ExitStack() as undone:
            undone.callback(control.close)
            temporary = {}
            if folder := make_temporary_folder():
                temporary["TMPDIR"] = folder
                self._remove_temporary = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._process = start_process(
                [sys.executable, "-m", "env_adapters.host.fork_server", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": path} | temporary,
                stdin=subprocess.DEVNULL,
                # Where autogroup scheduling is on, Linux divides CPU time between sessions, and niceness only counts
                # within one. In a session of their own all environments together get no more than the host's session.
                start_new_session=True,
            )
            undone.pop_all()
        self._control = control


def _stop(forking: "asyncio.Future[ProcessWorker]") -> None:
    """Stop a process that came when nobody waited for it any more."""
    if not forking.cancelled() and forking.exception() is None:
        forking.result().stop()
