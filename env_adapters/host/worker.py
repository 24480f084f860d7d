"""Interface of workers, which run one environment each in a thread or process, and the exception for their failures.

Owns the meaning of each request, which is the same for both kinds of worker.
"""

from collections.abc import Callable
from traceback import format_exception
from typing import Any, Protocol

from env_adapters.base import TextEnvironment
from env_adapters.registry import make

_LONGEST = 2**16
"""Characters of an exception's type, of its text, and of its traceback, of which the end says most."""

METHODS = ("make", "reset", "step", "truncate", "close")


class EnvironmentFailure(Exception):
    """An environment raised, died or did not answer in time; only its episode is lost."""

    def __init__(self, text: str, *, kind: str = "EnvironmentFailure", trace: str = "") -> None:
        """Take the text.

        Args:
            text: What happened.
            kind: Type of the exception that the environment raised.
            trace: Its traceback, which becomes a note.
        """
        super().__init__(text)
        self.kind = kind
        if trace:
            self.add_note(trace)


def raised_by_environment(error: BaseException) -> dict[str, str]:
    """Return the arguments of the :class:`EnvironmentFailure` for what an environment raised, as JSON values."""
    kind, text = _shown(lambda: type(error).__name__)[:_LONGEST], _shown(lambda: str(error))[:_LONGEST]
    return {
        "text": f"{kind}: {text}",
        "kind": kind,
        "trace": _shown(lambda: "".join(format_exception(error)))[-_LONGEST:],
    }


def _shown(make: Callable[[], str]) -> str:
    """Return what shows an exception, which may raise another one there: its episode would wait for an answer."""
    try:
        return str.__str__(make())  # a string whose methods are not those of an environment
    except BaseException:
        return "it cannot be shown"


class Worker(Protocol):
    """One environment, used by one episode at a time."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer; the caller sets the time limit.

        Args:
            method: One of ``METHODS``.
            *arguments: JSON values, see ``Slot.handle``.

        Raises:
            EnvironmentFailure: If the environment raised or died.
        """
        ...

    def alive(self) -> bool:
        """Return whether the worker can still answer; returns immediately."""
        ...

    def stop(self) -> None:
        """Abandon the worker, whatever it is doing; returns immediately."""
        ...


class Slot:
    """Holds at most one environment and carries out requests on it."""

    def __init__(self) -> None:
        """Start without an environment."""
        self._environment: TextEnvironment | None = None

    def handle(self, method: str, *arguments: Any) -> Any:
        """Carry out one request: ``make(name, options)``, ``reset(seed)``, ``step(text)``, ``truncate()``, ``close()``.

        Returns:
            What the environment returned; its ``tools`` for ``make``.
        """
        if method == "make":
            name, options = arguments
            self._environment = make(name, **options)
            return list(self._environment.tools)
        if self._environment is None:
            raise RuntimeError(f"{method}() was called before make()")
        if method == "reset":
            return self._environment.reset(seed=arguments[0])
        return getattr(self._environment, method)(*arguments)
