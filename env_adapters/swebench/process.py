"""Sandbox in a local process, controlled through its standard input and output.

Owns the host's side of the protocol; ``supervisor.sh`` is the other side. The backends choose the process.

There is no terminal: no echo, no limit on line length, no signals from control characters, and programs use no colours.
"""

import base64
import os
import re
import secrets
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from env_adapters.launching import start_process
from env_adapters.swebench.sandbox import Limits, Output, Sandbox, SandboxError, SandboxLost

_GRACE = 20.0  # seconds in which a sandbox must answer after a command was stopped
_CHUNK = 2**16
_SESSION = "builtin eval {command} </dev/null 3>&-; builtin echo {mark} $? >&3\n"


def supervisor_command(limits: Limits, *, before: str = "") -> list[str]:
    """Return the command line of a sandbox's first process.

    Args:
        limits: The limits of the sandbox.
        before: What it does first, in bash.
    """
    # CPU time that a command can use on all processors together within its time limit.
    seconds = int(limits.timeout * (os.cpu_count() or 1)) + 1
    numbers = (limits.processes, limits.memory * 1024, seconds, limits.files)
    return ["bash", "--noprofile", "--norc", "-c", f"{before}\n{_supervisor()}", "supervisor", *map(str, numbers)]


class ProcessSandbox(Sandbox):
    """A sandbox whose first process is the supervisor."""

    def __init__(
        self,
        command: Sequence[str],
        limits: Limits,
        *,
        on_close: Callable[[], object] | None = None,
        **options: Any,
    ) -> None:
        """Start the process and wait until it answers.

        Args:
            command: The whole command line, ending with ``supervisor_command``.
            limits: The limits of the sandbox.
            on_close: Called on closing, after the process has been killed.
            **options: Options of ``subprocess.Popen``.

        Raises:
            SandboxError: If the sandbox does not start.
        """
        self.limits = limits
        try:
            pipe = subprocess.PIPE
            self._process = start_process(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, **options
            )
        except OSError as error:
            raise SandboxError(f"cannot run {command[0]!r}: {error}") from error
        self._close_with(_end, self._process, on_close)
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        if "user" in options:  # otherwise this user's programs could not open /dev/stdout
            os.fchown(self._from, options["user"], -1)
        os.set_blocking(self._to, False)
        try:
            self.exec("true", session=True)
        except SandboxLost as error:
            raise SandboxError(f"{command[0]!r} did not start a sandbox: {error}") from error

    def exec(self, command: str, *, stdin: bytes = b"", timeout: float | None = None, session: bool = False) -> Output:
        """See ``Sandbox``."""
        if not self._finalizer.alive:
            raise SandboxLost("the sandbox was closed")
        mark = secrets.token_hex(8)
        line = _SESSION.format(command=shlex.quote(command), mark=mark) if session else command
        text = line.encode(errors="replace")
        data = base64.b64encode(stdin)
        request = b"%b %d %d %d\n%b%b" % (mark.encode(), session, len(text), len(data), text, data)
        return self._answer(request, mark, self.limits.timeout if timeout is None else timeout)

    def _answer(self, request: bytes, mark: str, timeout: float) -> Output:
        """Send a request and read until its mark, stopping a command that takes too long or writes too much."""
        end = re.compile(rb"\x00%b (\d{1,3}|[a-z]+)\x00" % mark.encode())
        waiting, kept, written, stopped = memoryview(request), bytearray(), 0, ""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if stopped and left <= 0:
                self._lose(kept)
            if not stopped and (left <= 0 or written > self.limits.output):
                stopped = "timeout" if left <= 0 else "output"
                waiting = memoryview(bytes(waiting) + b"\n")
                left, deadline = _GRACE, time.monotonic() + _GRACE
            readable, writable = self._wait(left, to_write=len(waiting) > 0)
            if writable:
                waiting = waiting[self._write(waiting[:_CHUNK]) :]
            if readable:
                chunk = os.read(self._from, _CHUNK)
                if not chunk:
                    self._lose(kept)
                written += len(chunk)
                # Output above the limit is dropped, except for the last bytes, which may contain a part of the mark.
                kept += chunk
                if found := end.search(kept, max(0, len(kept) - len(chunk) - 64)):
                    return _output(bytes(kept[: found.start()]), found[1].decode(), stopped, self.limits.output)
                del kept[self.limits.output : max(self.limits.output, len(kept) - 64)]

    def _wait(self, seconds: float, *, to_write: bool) -> tuple[bool, bool]:
        """Wait until something can be read or, if wanted, written."""
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self._from, select.POLLIN)
        if to_write:
            poll.register(self._to, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        return self._from in ready, self._to in ready

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._to, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)  # the next read finds the end of the stream

    def _lose(self, said: bytearray) -> None:
        self.close()
        last = bytes(said[-500:]).decode(errors="replace")
        raise SandboxLost(f"the sandbox stopped answering; its last output: {last!r}")


def _output(data: bytes, status: str, stopped: str, limit: int) -> Output:
    if len(data) > limit:  # the command may have ended before this was noticed
        return Output(data[:limit], 1, stopped or "output")
    if status.isdigit():
        return Output(data[:limit], int(status))
    return Output(data[:limit], 1, stopped or status)


@cache
def _supervisor() -> str:
    return (Path(__file__).parent / "supervisor.sh").read_text()


def _end(process: subprocess.Popen[Any], on_close: Callable[[], object] | None) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
    process.wait()
    if on_close:
        on_close()
