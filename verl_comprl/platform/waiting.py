"""Waiting with a limit: for a Ray call, for a blocking call of a library, for a lock. Errors say what was waited for.

Neither Ray nor verl limits any of its waits, so a server or worker that hangs would hang the run with it. What is
waited for is under way meanwhile (:mod:`verl_comprl.platform.under_way`).
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import ray
from ray.exceptions import GetTimeoutError

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.under_way import doing

T = TypeVar("T")

_AGAIN = 5.0
"""Seconds after which a block is interrupted again: what it runs may have caught the exception."""

_PART = 1.0
"""Most seconds after which a wait notices that its limit has become shorter."""


class Lock(Protocol):
    """``threading.Lock`` or ``threading.RLock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; ``False`` if that took longer than ``timeout`` seconds."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


def wait_for(reference: Any, seconds: float, what: str) -> Any:
    """Return the result of a call to a Ray actor, or of several.

    Args:
        reference: What the remote call returned, or a list of that.
        seconds: How long to wait. The call itself continues after that.
        what: What is waited for, as it should read in an error.

    Raises:
        WaitTimeout: If it takes longer.
        ray.exceptions.RayError: What the actor raised, or that it died.
    """
    try:
        with doing(f"waiting for {what}", has_limit=True):
            return ray.get(reference, timeout=seconds)
    except GetTimeoutError as error:
        raise WaitTimeout(what, seconds) from error


def begin(function: Callable[[], T], what: str) -> "Future[T]":
    """Begin a blocking call in a thread, and return its future result.

    Args:
        function: Nothing can end it; a process does not wait for it when it exits.
        what: What it does, the name of the thread.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    # Not an executor: Python waits for the threads of one when it exits, however long they take.
    threading.Thread(target=run, name=what, daemon=True).start()
    return future


def result_within(future: "Future[T]", limit: "float | Patience", what: str) -> T:
    """Return the result of :func:`begin`.

    Args:
        future: What it returned.
        limit: How many seconds to wait. The call itself continues after that.
        what: What is waited for, as it should read in an error.

    Raises:
        WaitTimeout: If it takes longer.
        Exception: What the call raised.
    """

    def is_done(seconds: float) -> bool:
        wait([future], seconds)
        return future.done()

    with doing(f"waiting for {what}", has_limit=True):
        _wait_until(is_done, limit, what)
    return future.result()


def call_within(function: Callable[[], T], seconds: float, what: str) -> T:
    """Return what a blocking call returns that has no limit of its own.

    Args:
        function: Called in a thread, which is left behind if it takes too long: nothing can end it.
        seconds: How long to wait.
        what: What is waited for, as it should read in an error.

    Raises:
        WaitTimeout: If it takes longer.
        Exception: What ``function`` raised.
    """
    return result_within(begin(function, what), seconds, what)


@contextmanager
def interrupted_after(seconds: float, what: str) -> Iterator[None]:
    """Limit a block that cannot be left behind in a thread, since it has to be in the main one.

    The first Ctrl-C or SIGTERM ends it as well: there is nothing in it that would be worth a second one.

    Args:
        seconds: How long it may take.
        what: What is waited for, as it should read in an error.

    Raises:
        WaitTimeout: In the block, when it takes longer or a signal comes.
    """
    main, began, left = threading.main_thread().ident or 0, time.monotonic(), threading.Event()

    def interrupt(*_: object) -> None:
        if not left.is_set():
            raise WaitTimeout(what, round(time.monotonic() - began, 1))

    def end() -> None:
        limit = seconds
        while not left.wait(limit):
            signal.pthread_kill(main, signal.SIGINT)
            limit = _AGAIN

    thread = threading.Thread(target=end, name=f"limit of {what}", daemon=True)
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            for number in previous:
                signal.signal(number, interrupt)
            thread.start()
            with doing(f"waiting for {what}", has_limit=True):
                yield
        finally:
            left.set()
    finally:
        left.set()  # also if a signal came in the line above
        if thread.ident:  # not if one came before it was started
            thread.join()  # its last signal may be on the way, and is not for the handlers of before
        for number, handler in previous.items():
            signal.signal(number, handler)


class Patience:
    """How long is waited, all in all, for one thing after another; a reason to hurry may come in the middle of it."""

    def __init__(self, seconds: float, *, hurried: float, hurries: Callable[[], bool]) -> None:
        """Begin now.

        Args:
            seconds: Limit.
            hurried: How many seconds are left, at most, when a wait notices that there is a reason to hurry.
            hurries: Says whether there is one.
        """
        self._hurried, self._hurries = hurried, hurries
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._noticed = False

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def is_enough_for(self, wait: Callable[[float], bool]) -> bool:
        """Wait in parts; returns whether what is waited for came in time.

        Args:
            wait: Waits for at most so many seconds, and returns whether it has come.
        """
        while True:
            if not self._noticed and self._hurries():
                self._noticed, self._end = True, min(self._end, time.monotonic() + self._hurried)
            left = max(0.0, self._end - time.monotonic())
            if wait(min(left, _PART)):
                return True
            if not left:
                return False


def _wait_until(comes: Callable[[float], bool], limit: float | Patience, what: str) -> None:
    is_patience = isinstance(limit, Patience)
    if not (limit.is_enough_for(comes) if is_patience else comes(limit)):
        raise WaitTimeout(what, round(limit.waited, 1) if is_patience else limit)


@contextmanager
def holding(lock: Lock, limit: float | Patience, what: str) -> Iterator[None]:
    """Hold a lock.

    Args:
        lock: The lock.
        limit: How many seconds to wait for it.
        what: What holds it otherwise, as it should read in an error.

    Raises:
        WaitTimeout: If it takes longer.
    """
    with doing(f"waiting for {what}", has_limit=True):
        _wait_until(lambda seconds: lock.acquire(timeout=seconds), limit, what)
    try:
        yield
    finally:
        lock.release()
