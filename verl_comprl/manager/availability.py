"""Keeps track of whether extractor and bank can be asked, and lets calls wait or end while they cannot.

The extractor is away while its server sleeps for an update, from the moment its server has died, and for a pause when
an endpoint cannot be reached; the bank is away for a pause when its store or embedder cannot be reached. Nobody in a
rollout waits for them then; work in the background does, which is not counted as a failed attempt.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from verl_comprl.experience import EmbedderUnavailable, StoreUnavailable
from verl_comprl.experience.store.errors import StoreVanished
from verl_comprl.extractor.calls import Generate, Generation
from verl_comprl.extractor.prompt_encoder import Prompt

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds until what could not be reached is asked again; doubled from one failure to the next."""


class ExtractorGone(Exception):
    """The extractor's server has died; raised by a :data:`~verl_comprl.extractor.calls.Generate`."""


class ExtractorUnreachable(Exception):
    """The extractor's endpoint cannot be reached, or takes no requests; raised by a ``Generate``, after its retries."""


class Availability:
    """State of a service as the manager sees it; to be used from one event loop."""

    def __init__(self, name: str, outage: str) -> None:
        """Begin with a service that can be asked.

        Args:
            name: Of its metrics.
            outage: What is logged once in an outage, before the error.
        """
        self._name, self._outage = name, outage
        self._there, self._left = asyncio.Event(), asyncio.Event()
        self._there.set()
        self._since = 0.0
        self._seconds = 0.0
        self._pause = FIRST_PAUSE

    def away(self) -> None:
        """Note that it cannot be asked from now on."""
        if not self._left.is_set():
            self._since = time.monotonic()
            self._there.clear()
            self._left.set()

    def unreachable(self, error: Exception) -> None:
        """Note that it could not be reached: it is away for a pause, after which the waiting calls find out more."""
        if not self._left.is_set():  # one of many calls that have failed together
            if self._pause == FIRST_PAUSE:  # once in an outage, which may be a quota that is used up
                logger.warning("%s; it is asked again and again: %s", self._outage, error)
            self.away()
            asyncio.get_running_loop().call_later(self._pause, self.back)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def back(self) -> None:
        """Note that it can be asked again."""
        if self._left.is_set():
            self._seconds += time.monotonic() - self._since
            self._left.clear()
            self._there.set()

    def metrics(self) -> dict[str, float]:
        """Return whether it is away now, and for how long it has been since the run began."""
        away = self._left.is_set()
        running = time.monotonic() - self._since if away else 0.0
        return {f"{self._name}/away": float(away), f"{self._name}/away_seconds": self._seconds + running}


class BankAvailability(Availability):
    """State of the bank's store and embedder."""

    def __init__(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Begin with a bank that can be asked.

        Args:
            flush: Writes to the bank, which rebuilds a store that has vanished.
        """
        super().__init__("bank", "the bank's store or embedder cannot be reached, and distillations wait")
        self._flush = flush

    async def when_there(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that may wait: it is made when the bank is there, again if it was not.

        It must not hold a lock while it waits: checkpoints would wait for it, too.
        """
        has_failed = False
        try:
            while True:
                await self._there.wait()
                try:
                    return await self._with_store(call)
                except (StoreUnavailable, EmbedderUnavailable) as error:
                    has_failed = True
                    self.unreachable(error)
        finally:  # also after another error: it is an answer
            if has_failed:  # any other call may ask for less: a server whose disk is full still answers searches
                self._pause = FIRST_PAUSE

    async def _with_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, once more if the store had vanished: only a write rebuilds it, and the call may be a search."""
        try:
            return await call()
        except StoreVanished:
            await self._flush()
            return await call()


class ExtractorAvailability(Availability):
    """State of the extractor."""

    def __init__(self) -> None:
        """Begin with an extractor that can be asked."""
        super().__init__("extractor", "the extractor's endpoint takes no requests")
        self._gone = asyncio.Event()

    def gone(self) -> None:
        """Note that it has died, so that nobody can tell whether it will be back."""
        self.away()
        self._gone.set()

    def back(self) -> None:
        """Note that it can be asked again."""
        self._gone.clear()
        super().back()

    def when_there(self, generate: Generate) -> Generate:
        """Return ``generate`` for calls that may wait: it starts when the extractor is there, again if it was not."""

        async def wait_and_generate(prompt: Prompt) -> Generation:
            while True:
                await self._there.wait()
                try:
                    generation = await generate(prompt)
                except ExtractorGone:
                    self.gone()
                except ExtractorUnreachable as error:
                    self.unreachable(error)
                else:
                    self._pause = FIRST_PAUSE
                    return generation

        return wait_and_generate

    async def unless_away(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a call that may not wait, None as soon as the extractor is away."""
        return await _unless(self._left, call)

    async def unless_gone(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a call that need not wait for an extractor that has died, None as soon as it has."""
        return await _unless(self._gone, call)


async def _unless(event: asyncio.Event, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    if event.is_set():
        return None
    calling, ending = asyncio.create_task(call()), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({calling, ending}, return_when=asyncio.FIRST_COMPLETED)
        return calling.result() if calling.done() else None
    finally:
        calling.cancel()
        ending.cancel()
