"""Work and waits of this process that are under way, each with its age: what a watchdog looks at.

Works across threads and across asyncio tasks: what is begun within a block belongs to it, also in a task of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple


class UnderWay(NamedTuple):
    """One piece of work within which nothing else is under way."""

    what: str
    """Path of the blocks from the outermost one, joined by " > "."""
    seconds: float
    """Since it began, or since the last piece of work within it ended."""
    thread: int
    """Identity of the thread that began it."""
    stalled: float | None = None
    """Seconds since it began, or last showed that it gets on; None for a wait that a limit of its own ends."""

    @property
    def innermost(self) -> str:
        """The last part of the path."""
        return self.what.rpartition(" > ")[2]


@dataclass(eq=False)
class _Block:
    what: str
    outer: "_Block | None"
    thread: int
    since: float
    moved: float
    has_limit: bool
    inner: int = 0


_clock: Callable[[], float] = time.monotonic
_lock = threading.Lock()
_blocks: dict[_Block, None] = {}  # ordered as they began
_current: ContextVar[_Block | None] = ContextVar("comprl_under_way", default=None)


@contextmanager
def doing(what: str, *, has_limit: bool = False) -> Iterator[None]:
    """Let a block be seen while it runs.

    Args:
        what: What it does, in a few words.
        has_limit: Whether it ends by itself when it takes too long.
    """
    outer, now = _current.get(), _clock()
    path = f"{outer.what} > {what}" if outer else what
    block = _Block(path, outer, threading.get_ident(), now, now, has_limit)
    with _lock:
        _blocks[block] = None
        if outer:
            outer.inner += 1
    _current.set(block)
    try:
        yield
    finally:
        _current.set(outer)  # not reset(): a coroutine may be closed in another context
        with _lock:
            del _blocks[block]
            if outer:
                outer.inner -= 1
                outer.since = outer.moved = _clock()


def gets_on() -> None:
    """Note that the block in which this is called gets on, though it may take long."""
    if block := _current.get():
        block.moved = _clock()


def under_way(_: object = None) -> list[UnderWay]:
    """Return what is under way, in the order in which it began.

    Args:
        _: Ignored: an actor, when Ray runs this in its process.
    """
    with _lock:
        now = _clock()
        return [
            UnderWay(block.what, now - block.since, block.thread, None if block.has_limit else now - block.moved)
            for block in _blocks
            if not block.inner
        ]
