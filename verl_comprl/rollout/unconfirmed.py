"""Reports of finished episodes that the experience manager has not confirmed, kept to be sent again.

It knows which episodes it has counted (``manager/reported.py``), so that a report may reach it twice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from ray.exceptions import RayError

from verl_comprl.manager.messages import EpisodeReport, ManagerNotOpen
from verl_comprl.platform.deaths import ACTOR_AWAY

logger = logging.getLogger(__name__)

MOST_KEPT = 1024
"""Reports that a worker keeps, some ten thousand characters each: the episodes of a large step."""

MAX_REFUSALS = 3
"""How often the manager may raise at a report that is sent again before it is given up."""


class UnconfirmedReports:
    """Those of one worker; they are sent when the manager has just answered, and by a task that nobody waits for."""

    def __init__(self, send: Callable[[EpisodeReport], Awaitable[bool]]) -> None:
        """Keep none yet.

        Args:
            send: Sends a report once, within a limit; returns when the manager has taken it.
        """
        self._send = send
        self._kept: dict[str, EpisodeReport] = {}
        self._refusals: Counter[str] = Counter()
        self._sending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dropped = 0
        """Reports that were given up."""
        _of_this_process.add(self)

    def __len__(self) -> int:
        """Return the number of reports that wait."""
        return len(self._kept)

    def keep(self, episode: EpisodeReport) -> None:
        """Keep a report; the oldest one is given up if there are too many."""
        self._loop = asyncio.get_running_loop()
        self._kept[episode.request.id] = episode
        if len(self._kept) > MOST_KEPT:
            self._drop(next(iter(self._kept)), f"more than {MOST_KEPT} reports wait for the experience manager")

    def send_again(self) -> None:
        """Begin to send all of them, oldest first, unless that is under way; from the worker's event loop."""
        if self._kept and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    def send_from_any_thread(self) -> None:
        """Do so from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.send_again)

    async def _send_all(self) -> None:
        for id, episode in list(self._kept.items()):
            try:
                await self._send(episode)
            except (TimeoutError, *ACTOR_AWAY, ManagerNotOpen):  # the others would wait for it, too
                return
            except RayError as error:
                self._refusals[id] += 1
                if self._refusals[id] >= MAX_REFUSALS:
                    self._drop(id, f"the experience manager raised {error!r}")
            else:
                self._kept.pop(id, None)
                self._refusals.pop(id, None)

    def _drop(self, id: str, why: str) -> None:
        self._refusals.pop(id, None)
        if self._kept.pop(id, None) is None:
            return
        if not self.dropped:
            logger.warning("an episode is neither distilled nor credited (further ones are counted only): %s", why)
        self.dropped += 1


_of_this_process: WeakSet[UnconfirmedReports] = WeakSet()


def send_unconfirmed(_: object = None) -> tuple[int, int]:
    """Begin to send again what this process keeps; returns how many reports wait, and how many were given up.

    Args:
        _: Ignored: an actor, when Ray runs this in its process.
    """
    for reports in _of_this_process:
        reports.send_from_any_thread()
    return sum(map(len, _of_this_process)), sum(reports.dropped for reports in _of_this_process)
