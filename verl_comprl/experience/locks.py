"""Readers-writer discipline for one event loop.

Owns mutual exclusion only; what is read and written is the bank's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadWriteLock:
    """Many readers or one writer, in order of arrival: a waiting writer holds back later readers, so none starves.

    Cancelling any waiter or holder is safe: state changes only where no await can interrupt it.
    """

    def __init__(self) -> None:
        """Start free."""
        self._gate = asyncio.Lock()
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[None]:
        """Hold off writers."""
        async with self._gate:
            self._readers += 1
            self._unread.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._unread.set()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Hold off everybody else."""
        async with self._gate:
            await self._unread.wait()
            yield
