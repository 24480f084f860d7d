"""Interface of sandboxes, in which untrusted commands run in isolation.

Owns the interface, the limits and the result of a command. The backends create the sandboxes.
"""

import shlex
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

WORK_TREE = "/testbed"
"""Path of the repository in every sandbox, the same as in SWE-bench's images."""

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a sandbox.

    Attributes:
        timeout: Seconds that a command may run.
        memory: MiB that all processes together may hold, and that each one may allocate.
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
    """Result of a command.

    Attributes:
        data: Its standard output and error, up to the limit.
        code: Its exit status; 1 if it was stopped.
        stopped: Why it was stopped: ``timeout``, ``output``, ``memory``, ``processes`` or ``files``; ``exited`` if
            the shell itself ended; empty if it finished. In all cases but the last everything that ran in the sandbox
            has been killed and the next command gets a new shell; files are kept. (If too much output is noticed only
            after a command has ended, nothing is killed.)
    """

    data: bytes
    code: int
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command finished with status 0."""
        return self.code == 0 and not self.stopped


class SandboxError(RuntimeError):
    """A sandbox could not be started, because its engine is missing or reported an error."""


class SandboxLost(RuntimeError):
    """A running sandbox stopped answering as it should."""


class Sandbox(ABC):
    """An isolated machine with a work tree and a persistent shell.

    An instance must be used by one thread at a time. All its output comes from untrusted programs.
    """

    limits: Limits

    @abstractmethod
    def exec(self, command: str, *, stdin: bytes = b"", timeout: float | None = None, session: bool = False) -> Output:
        """Run a command in the work tree.

        Args:
            command: Text for bash, without NUL characters.
            stdin: Standard input of the command; ignored in a session.
            timeout: Seconds; by default that of ``limits``.
            session: Whether to run it in the persistent shell, which keeps its directory and variables between calls.
                Otherwise the command gets a new shell, and all other processes of the sandbox are suspended meanwhile.

        Raises:
            SandboxLost: If the sandbox does not answer.
        """

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None if it is not a file, cannot be read or is longer than the output limit."""
        quoted = shlex.quote(path)
        output = self.exec(f"[ -f {quoted} ] && exec cat -- {quoted} 2>/dev/null")
        return output.data if output.ok else None

    def write(self, path: str, data: bytes) -> Output:
        """Write a file, creating its parent folders."""
        quoted = shlex.quote(path)
        return self.exec(f'mkdir -p -- "$(dirname -- {quoted})" && cat >{quoted}', stdin=data)

    def close(self) -> None:
        """Kill all processes in the sandbox and discard its files; may be called more than once."""
        self._finalizer()

    def _close_with(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` once, on the first ``close`` or when this object is garbage collected.

        ``arguments`` must not refer to this object, which would then never be collected.
        """
        self._finalizer = weakref.finalize(self, function, *arguments)
