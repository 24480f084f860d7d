"""Ends a run whose main thread hangs, from another thread; its processes end as after a second Ctrl-C.

A signal wakes the main thread from every wait of Python and of Ray. Ray lets no other exception than
``KeyboardInterrupt`` out of ``ray.get``, so that is what the main thread gets where it stands; it becomes
:class:`RunHung` where the watched block ends. A main thread that cannot be woken, or hangs again while it leaves, is
killed with all processes that it has started.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from verl_comprl.display.announcer import SETTLE_SECONDS, settle
from verl_comprl.platform.ray_session import kill_descendants
from verl_comprl.platform.waiting import call_within

_SIGNAL = signal.SIGUSR2  # neither verl, Ray nor vLLM uses it; to the main thread only, whose calls it interrupts

LEAVE_SECONDS = 300.0
"""Seconds that the main thread may take to end episodes and close the bank: several times their own limits."""

TELL_SECONDS = 2 * SETTLE_SECONDS
"""Seconds that it may take to say that the run is killed."""


class RunHung(RuntimeError):
    """A phase of the run hung, or waited in vain for what a dead process does, until the watchdog ended it."""


class Ending:
    """Whether the run is to end, and why."""

    def __init__(self, announce: Callable[[str], None], seconds: float = LEAVE_SECONDS) -> None:
        """Let the run continue.

        Args:
            announce: Prints on the terminal.
            seconds: How long the main thread may take to leave.
        """
        self._announce, self._seconds = announce, seconds
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._reason: str | None = None

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the block be ended by :meth:`end`; in the main thread.

        Raises:
            RunHung: If it was.
        """
        previous = signal.signal(_SIGNAL, self._interrupt)
        try:
            try:
                yield
            finally:
                with self._lock:
                    self._left.set()
        except BaseException as error:
            if self._reason is None:
                raise
            raise RunHung(self._reason) from error  # also where leaving has raised something else
        finally:
            self._left.set()  # also if the signal came while the lock was waited for
            signal.signal(_SIGNAL, previous or signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._reason is not None and not self._left.is_set():
            raise KeyboardInterrupt

    def end(self, reason: str) -> None:
        """End the block, unless it has been left or is being ended; returns when it has, and otherwise not at all.

        Args:
            reason: Message of the error.
        """
        with self._lock:  # so that the signal finds its handler
            if self._left.is_set() or self._reason is not None:
                return
            self._reason = reason
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._left.wait(self._seconds):
            self._kill(reason)

    def _kill(self, reason: str) -> None:
        text = f"error: {reason}\nthe run did not leave by itself; all of its processes have been killed"

        def tell() -> None:
            try:
                self._announce(text)
            finally:
                print(text, flush=True)  # to the log; last, as it may be the terminal, which may take no more
            settle()

        try:
            with suppress(BaseException):  # whether or not anybody can be told
                call_within(tell, TELL_SECONDS, "the terminal")
            kill_descendants()
        finally:
            os._exit(1)
