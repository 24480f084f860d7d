"""Says that a wait goes on, where no watchdog looks yet: before a run has begun, it is all that a user sees."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl_comprl.display.units import duration

FIRST_SECONDS = 10.0
"""What takes less is not worth a line."""


@contextmanager
def said_when_long(what: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Say that the block goes on when it has taken ten seconds, and again whenever it has taken twice as long.

    Args:
        what: What the block does.
        tell: Called in a thread, with one line.
    """
    ended = threading.Event()
    began = time.monotonic()

    def say() -> None:
        seconds = FIRST_SECONDS
        while not ended.wait(began + seconds - time.monotonic()):
            tell(f"{what}: {duration(seconds)} so far")
            seconds *= 2

    threading.Thread(target=say, name="long waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
