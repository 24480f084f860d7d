"""Work and waits of this process that are under way, each with its age: what a watchdog looks at.

Works across threads and across asyncio tasks: what is begun within a block belongs to it, also in a task of its own,
and is no longer under way when that block has ended.
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

    def is_under_way(self) -> bool:
        """Return whether neither it nor a block around it has ended.

        An interruption can leave one behind: while somebody keeps its traceback, the frames that it went through live.
        """
        return self in _blocks and (self.outer is None or self.outer.is_under_way())


_clock: Callable[[], float] = time.monotonic
# Without a lock: garbage may be collected while its holder allocates, and end the block of a coroutine that is part of
# it, in the same thread. Each operation on it, a copy too, is atomic: the GIL is held, and none of our code is called.
_blocks: dict[_Block, None] = {}  # ordered as they began
_current: ContextVar[_Block | None] = ContextVar("comprl_under_way", default=None)


@contextmanager
def doing(what: str, *, has_limit: bool = False) -> Iterator[None]:
    """Let a block be seen while it runs.

    Args:
        what: What it does, in a few words.
        has_limit: Whether it ends by itself when it takes too long.
    """
    outer, now = _enclosing(), _clock()
    path = f"{outer.what} > {what}" if outer else what
    block = _Block(path, outer, threading.get_ident(), now, now, has_limit)
    try:
        _blocks[block] = None
        _current.set(block)
        yield
    finally:
        try:
            if outer:  # before this one has ended: the outer one would seem to have stalled as long
                outer.since = outer.moved = _clock()
        finally:
            _blocks.pop(block, None)


def _enclosing() -> _Block | None:
    """Return the innermost block around the caller.

    Blocks that end do not set the context back: a coroutine may be closed in another one, or an interruption come.
    """
    block = _current.get()
    while block and not block.is_under_way():
        block = block.outer
    return block


def gets_on() -> None:
    """Note that the block in which this is called gets on, though it may take long."""
    if block := _enclosing():
        block.moved = _clock()


def under_way(_: object = None) -> list[UnderWay]:
    """Return what is under way, in the order in which it began.

    Args:
        _: Ignored: an actor, when Ray runs this in its process.
    """
    blocks = [block for block in list(_blocks) if block.is_under_way()]
    outer = {block.outer for block in blocks}
    innermost = [(block, block.since, block.moved) for block in blocks if block not in outer]
    now = _clock()  # after all of them, or one could be younger than 0
    return [
        UnderWay(block.what, now - since, block.thread, None if block.has_limit else now - moved)
        for block, since, moved in innermost
    ]
