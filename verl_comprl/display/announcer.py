"""Prints in a thread of its own, so that neither a signal handler nor the watchdog waits for the terminal.

A handler runs in the middle of whatever the main thread does, which may hold the locks that printing takes.
"""

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue

SETTLE_SECONDS = 5.0
"""How long announcements are waited for, at most, before a process ends."""

_Announcement = tuple[Callable[[str], None], str]

_waiting: "SimpleQueue[_Announcement | threading.Event]" = SimpleQueue()  # a handler may put into no other queue


@cache
def start_announcer() -> None:
    """Start the process's announcer, unless it runs: no thread can be started in a signal handler."""
    threading.Thread(target=_print_all, name="announcements", daemon=True).start()
    atexit.register(settle)


def announce(tell: Callable[[str], None], text: str) -> None:
    """Let the announcer call ``tell`` with ``text``; in any thread, and in a signal handler."""
    _waiting.put((tell, text))


def settle(seconds: float = SETTLE_SECONDS) -> None:
    """Wait until everything is printed that has been announced, at most so many seconds."""
    settled = threading.Event()
    _waiting.put(settled)
    settled.wait(seconds)


def _print_all() -> None:
    while True:
        item = _waiting.get()
        if isinstance(item, threading.Event):
            item.set()
            continue
        tell, text = item
        with suppress(Exception):  # a line is lost, and not the announcer
            tell(text)
