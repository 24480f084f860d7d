"""Time limits that stand still while the actor's servers pause for training: of episodes, and of what answers them.

With verl's ``colocate_async`` episodes continue across training steps. Without this, a slow step would end them, and
their questions where the actor is the extractor.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary


class PausableClock:
    """Makes time limits, and stops and continues those that are running."""

    def __init__(self) -> None:
        """Begin with a clock that runs."""
        self._limits: WeakKeyDictionary[asyncio.Timeout, float] = WeakKeyDictionary()
        """Limits by the seconds that are left of them; those of a limit that runs are as of the last pause."""
        self._paused = False
        self._latest = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """Return what ``asyncio.timeout`` does, to be entered at once; all of one event loop."""
        self._loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None if self._paused else seconds)
        self._limits[limit] = seconds
        return limit

    def told(self, paused: bool, number: int) -> None:
        """Do what the latest message of the run's driver says: Ray may bring them in another order.

        A pause that overtook its end would have none.
        """
        if number > self._latest:
            self._latest = number
            self.pause(paused)

    def pause(self, paused: bool) -> None:
        """Stop the clock, or let it continue; from any thread."""
        if self._loop is None:
            self._paused = paused
        else:
            self._loop.call_soon_threadsafe(self._pause, paused, self._loop)

    def _pause(self, paused: bool, loop: asyncio.AbstractEventLoop) -> None:
        if paused == self._paused:
            return
        self._paused, now = paused, loop.time()
        for limit in list(self._limits):
            at = limit.when()
            if limit.expired() or (at is not None and at <= now):
                continue
            try:
                if paused and at is not None:
                    self._limits[limit] = at - now
                    limit.reschedule(None)
                elif not paused:
                    limit.reschedule(now + self._limits[limit])
            except RuntimeError:  # its block has been left
                del self._limits[limit]


_clock = PausableClock()
_numbers = itertools.count(1)
"""Of the messages from this process."""


def episode_clock() -> PausableClock:
    """Return the clock of the episodes in this process."""
    return _clock


def pause_episodes(processes: Sequence[Any], paused: bool) -> None:
    """Stop the clocks of processes that play episodes or answer them, or let them continue; does not wait for that.

    Args:
        processes: Their Ray actors.
        paused: Whether the servers pause.
    """
    number = next(_numbers)
    for process in processes:
        process.__ray_call__.remote(_pause, paused, number)


def _pause(_: Any, paused: bool, number: int) -> None:
    _clock.told(paused, number)
