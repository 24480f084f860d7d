"""What a sandbox is: a closed machine in which commands run.

Owns the interface, its limits and what a command's end looks like. How a sandbox is made is the backends'.
"""

import shlex
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

WORK_TREE = "/testbed"
"""Where the repository lies in every sandbox; SWE-bench's images have it there too."""

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used in a sandbox.

    Attributes:
        timeout: Seconds that a command may run.
        memory: MiB that all processes may hold together, and that one may map for itself.
        disk: MiB of files in the work tree, and again in /tmp.
        processes: Processes and threads at the same time.
        files: Files and directories in the work tree, and again in /tmp.
        output: Bytes that a command may write before it is stopped.
    """

    timeout: float = 60.0
    memory: int = 2048
    disk: int = 512
    processes: int = 128
    files: int = 100_000
    output: int = 4 * MIB

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is not positive.
        """
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Output:
    """How a command ended.

    Attributes:
        data: What it wrote to standard output and error, up to the limit.
        code: Its exit status; 1 if it was stopped.
        stopped: Why it was stopped: ``timeout``, ``output``, ``memory``, ``processes`` or ``files``; ``exited`` if
            the shell itself ended; empty if it came to its end. Whatever the reason, all that ran in the sandbox is
            gone then and the next command finds a fresh shell; files are kept. (Too much output may be noticed when a
            command has ended already; then everything goes on.)
    """

    data: bytes
    code: int
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command came to its end with status 0."""
        return self.code == 0 and not self.stopped


class SandboxError(RuntimeError):
    """A sandbox could not be started: its engine is missing or refuses."""


class SandboxLost(RuntimeError):
    """A sandbox that had been started does not answer as it should any more; it has been closed."""


class Sandbox(ABC):
    """A closed machine with a work tree, a shell that lasts and no way out.

    An instance is used by one thread at a time. What comes out of it was made by untrusted programs.
    """

    limits: Limits

    @abstractmethod
    def exec(self, command: str, *, stdin: bytes = b"", timeout: float | None = None, session: bool = False) -> Output:
        """Run a command in the work tree.

        Args:
            command: Text for bash, without NUL characters.
            stdin: What the command reads; nothing in a session.
            timeout: Seconds; the limit's by default.
            session: Whether to run it in the shell that lasts, whose directory and variables stay from call to call.
                Without it the command gets a shell of its own and all else that was started in the sandbox stands
                still meanwhile.

        Raises:
            SandboxLost: If the sandbox does not answer.
        """

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None if it is not a file, cannot be read or is longer than the output limit."""
        quoted = shlex.quote(path)
        output = self.exec(f"[ -f {quoted} ] && exec cat -- {quoted} 2>/dev/null")
        return output.data if output.ok else None

    def write(self, path: str, data: bytes) -> Output:
        """Write a file, with the folders it needs."""
        quoted = shlex.quote(path)
        return self.exec(f'mkdir -p -- "$(dirname -- {quoted})" && cat >{quoted}', stdin=data)

    def close(self) -> None:
        """End all that runs in it and forget its files; harmless when called again."""
        self._finalizer()

    def _close_with(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` at the first ``close``, at the latest when nothing refers to this object any more."""
        self._finalizer = weakref.finalize(self, function, *arguments)
