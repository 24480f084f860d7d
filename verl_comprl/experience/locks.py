"""Readers-writer lock for one event loop.

Owns mutual exclusion only; knows nothing of what is read and written.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadWriteLock:
    """Many readers or one writer, in order of arrival: a waiting writer blocks later readers, so that none starves.

    Cancelling any waiter or holder is safe: state changes only where no await can interrupt it.
    """

    def __init__(self) -> None:
        """Start unlocked."""
        self._gate = asyncio.Lock()
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[None]:
        """Block writers while the context is open."""
        async with self._gate:
            self._readers += 1
            self._no_readers.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._no_readers.set()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Block readers and other writers while the context is open."""
        # The gate stays closed while this writer waits for the readers to leave: later readers queue behind it.
        async with self._gate:
            await self._no_readers.wait()
            yield
