"""The one path by which a bank changes: memory and store together, one writer at a time, readers never in between.

Owns locks, the order of writes and the periodic writing of counters. What is written is the bank's decision.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import numpy as np

from verl_comprl.experience.entries import EntryTable
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore, StoreError

T = TypeVar("T")

_log = logging.getLogger(__name__)


async def load_repaired(store: ExperienceStore, *, read_only: bool) -> list[Experience]:
    """Return the entries of a store, without those whose replacement is there too.

    A process that died between the two halves of a replacement left both; the old ones are deleted here.
    """
    entries = await store.load()
    replaced = {parent for entry in entries for parent in entry.parents}
    left_over = [entry.id for entry in entries if entry.id in replaced]
    if left_over and not read_only:
        await store.delete(left_over)
    return [entry for entry in entries if entry.id not in replaced]


class Ledger:
    """Entries and their store. One event loop.

    Writers queue for a lock of their own, where they can plan at leisure; readers are held off only while a plan is
    carried out, which is a call or two to the store and never to a model.
    """

    def __init__(self, store: ExperienceStore, table: EntryTable, *, flush_seconds: float, read_only: bool) -> None:
        """Take over an open store and its entries, and write counters every ``flush_seconds`` from now on."""
        self.store = store
        self.table = table
        self.version = 0
        """Grows with every change of what a search can find."""
        self.flush_failures = 0
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._writer = asyncio.Lock()
        self._visible = ReadWriteLock()
        self._writes: set[asyncio.Task[Any]] = set()
        self._flusher = None if read_only else asyncio.create_task(self._flush_periodically(flush_seconds))

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Hold off changes while store and memory are read together."""
        self._check_loop()
        return self._visible.read()

    async def write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` as the only writer. A cancelled caller does not interrupt it.

        Raises:
            StoreError: If the bank was opened read-only, or in another event loop.
        """
        self._check_loop()
        if self._read_only:
            raise StoreError("the experience bank was opened read-only")

        async def locked() -> T:
            async with self._writer:
                return await work()

        task = asyncio.create_task(locked())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        # Shielded: a write that stopped half way would let readers in between its halves.
        return await asyncio.shield(task)

    # What follows is called by the work that `write` runs.

    async def change(self, new: Sequence[Experience], vectors: np.ndarray, removed: Sequence[str]) -> None:
        """Add and remove entries, so that every reader sees all of it or nothing.

        If the store fails on the way, readers keep the old state; the same change can be made again.
        """
        async with self._visible.write():
            if new:
                await self.store.upsert(new, vectors)
            if removed:
                await self.store.delete(removed)
            self.table.change(new, removed)
            self.version += 1

    async def rewrite(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change fields of entries, but for texts and counters; counting goes on meanwhile."""
        async with self._visible.write():
            await self.store.update(self.table.rewritten(changes))
            self.table.rewrite(changes)
            self.version += 1

    async def replace_all(self, entries: Sequence[Experience], vectors: np.ndarray) -> None:
        """Replace the content, all of it or nothing."""
        async with self._visible.write():
            await self.store.replace_all(entries, vectors)
            self.table.adopt(entries)
            self.version += 1

    async def replace_vectors(self, vectors: Mapping[str, np.ndarray], embedding: dict[str, Any]) -> None:
        """Give every entry another vector, all of them or none; counting goes on meanwhile."""
        async with self._visible.write():
            entries = list(self.table.by_id.values())
            rows = np.array([vectors[entry.id] for entry in entries], np.float32).reshape(-1, embedding["dimension"])
            await self.store.replace_all(entries, rows, embedding)
            self.version += 1

    async def write_counters(self) -> None:
        """Bring the store up to date; what cannot be written stays to be written."""
        batch = self.table.take_uncounted()
        try:
            await self.store.update(batch)
        except BaseException:
            self.table.give_back(batch)
            raise

    async def flush(self) -> None:
        """Write the counters and make everything durable."""

        async def write() -> None:
            await self.write_counters()
            await self.store.flush()

        await self.write(write)

    async def close(self) -> None:
        """Finish what is under way, write the counters and let go of the store."""
        if self._flusher is not None:
            self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flusher
        try:
            if not self._read_only:
                await self.write(self.write_counters)
        finally:
            await self.store.close()

    async def _flush_periodically(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:  # also if there is nothing to write: a store may have to say that its writer is alive
                await self.write(self.write_counters)
            except StoreError:
                if not self.flush_failures:
                    _log.exception("counters of the bank could not be written; they stay in memory and are tried again")
                self.flush_failures += 1

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError("the experience bank was opened in another event loop; open it where it is used")
