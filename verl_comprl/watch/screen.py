"""Shows a page on the whole terminal until a key is pressed."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

_QUIT = b"qQ\x03\x04"
"""q, Ctrl-C and Ctrl-D."""


def show(page: Callable[[], RenderableType], console: Console, seconds: float) -> None:
    """Draw ``page`` again every so many seconds, until q or Ctrl-C."""
    try:
        with _quit_key() as quits, Live(page(), console=console, screen=True, auto_refresh=False) as live:
            while not quits(seconds):
                live.update(page(), refresh=True)
    except KeyboardInterrupt:
        return


@contextmanager
def _quit_key() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for a key, at most so many seconds, and returns whether it asks to quit."""
    if not sys.stdin.isatty():

        def pause(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield pause
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([terminal], [], [], seconds)
        key = os.read(terminal, 1) if ready else b"-"
        return not key or key in _QUIT  # nothing at all: the terminal is gone

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
