"""Applies changes of the entries to memory and store together, with one writer at a time.

Owns the locks, the order of writes and the periodic writing of counters. What to change is decided in ``bank``.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from verl_comprl.experience.entries import EntryTable
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore, Hit, SearchRequest
from verl_comprl.experience.store.errors import StoreError, StoreVanished

T = TypeVar("T")

_log = logging.getLogger(__name__)


async def load_repaired(store: ExperienceStore, *, read_only: bool) -> list[Experience]:
    """Load the entries of a store, without those that an interrupted replacement should have removed.

    A process killed in the middle of a replacement leaves old and new entries; the old ones are deleted here. A store
    for which that fails is closed.
    """
    try:
        return await _repaired(store, await store.load(), read_only=read_only)
    except BaseException:
        await store.close()
        raise


async def _repaired(store: ExperienceStore, entries: list[Experience], *, read_only: bool) -> list[Experience]:
    contents = store.contents
    left_over = set(contents.left_over)
    if contents.unreadable:
        _log.warning(
            "%d entries of the bank cannot be read and are left out, first: %s; `comprl bank delete --id` removes them",
            len(contents.unreadable),
            next(iter(contents.unreadable.values())),
        )
    if not read_only:
        if left_over:
            await store.delete([*left_over])
        if contents.unflagged:
            await store.update(contents.unflagged)
    return [entry for entry in entries if entry.id not in left_over]


class Ledger:
    """The entries in memory and their store, changed together. Belongs to one event loop.

    There are two locks. A writer plans its change and calls the store under the writer lock, while readers continue.
    Readers are blocked only while memory changes, which waits for nothing.

    A store can fail without telling whether it has done what it was told. What it may hold and memory does not is
    therefore remembered, hidden from searches, and deleted before the next write.

    A server that was started again without its storage gets the bank back from memory, at the next write.
    """

    def __init__(
        self,
        store: ExperienceStore,
        table: EntryTable,
        embed: Callable[[Sequence[Experience]], Awaitable[np.ndarray]],
        flush_seconds: float,
        *,
        read_only: bool,
    ) -> None:
        """Take ownership of an open store and its entries.

        Args:
            store: The store.
            table: What it holds.
            embed: Returns the vectors of entries, which memory does not have, for a store that has vanished.
            flush_seconds: Interval between two writes of the counters.
            read_only: Write nothing.
        """
        self.store = store
        self.table = table
        self._embed = embed
        self.version = 0
        """Incremented by every change that can alter the result of a search."""
        self.flush_failures = 0
        """Failed writes of counters, and failed removals, which are all repeated."""
        self.rebuilds = 0
        """How often the store had vanished and was made again."""
        self._written = time.monotonic()
        self._unwanted: set[str] = set()
        """Ids that the store may hold and memory does not."""
        self.read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._writer = asyncio.Lock()
        self._visible = ReadWriteLock()
        self._writes: set[asyncio.Task[Any]] = set()
        self._flusher = None if read_only else asyncio.create_task(self._flush_periodically(flush_seconds))

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Block changes while memory and store are read together, for moments: one that waits blocks later readers."""
        self._check_loop()
        return self._visible.read()

    def unchanged(self) -> AbstractAsyncContextManager[None]:
        """Hold off whole writes while memory and store are read together, however long: queries go on."""
        self._check_loop()
        return self._writer

    async def search(self, requests: Sequence[SearchRequest]) -> list[list[Hit]]:
        """Search the store, and take over what another process has written of the hits; within ``reading``."""
        if self._unwanted:  # left out here, they take no places of a result
            unwanted = frozenset(self._unwanted)
            requests = [replace(request, exclude=request.exclude | unwanted) for request in requests]
        found = await self.store.search(requests)
        await self.refresh(hit.id for hits in found for hit in hits)
        return found

    async def refresh(self, ids: Iterable[str]) -> None:
        """Take over what another process has made of entries, if one can: written anew, or removed.

        Known ones too: they may have been quarantined, released or counted since. The memory of a writer is newer than
        its store, and is left alone.
        """
        if not (self.read_only and self.store.shared):
            return
        # Under the read lock: this process writes nothing, and what changes in one go spoils no other search.
        asked = dict.fromkeys(ids)
        entries = await self.store.fetch([*asked])
        known = self.table.by_id
        changed = [entry for entry in entries if known.get(entry.id) != entry]
        removed = (asked.keys() - {entry.id for entry in entries}) & known.keys()
        if changed or removed:
            self.table.change(changed, removed)

    async def write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` as the only writer. Cancelling the caller does not stop it.

        Should the store have vanished, it is made again, and ``work`` runs once more.

        Raises:
            StoreError: If the bank was opened read-only, or in another event loop, or what an earlier write has left in
                the store cannot be deleted; ``work`` has not begun then.
        """
        self._check_loop()
        if self.read_only:
            raise StoreError("the experience bank was opened read-only")

        async def locked() -> T:
            async with self._writer:
                try:
                    await self._delete_unwanted()
                    return await work()
                except StoreVanished as error:
                    await self._rebuild(error)
                    return await work()

        task = asyncio.create_task(locked())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        # Shielded: what a write does not finish is left to the next one, and there may be none.
        return await asyncio.shield(task)

    async def _rebuild(self, vanished: StoreVanished) -> None:
        """Rebuild a store that has vanished from the entries in memory, as the only writer."""
        entries, unreadable = list(self.table.by_id.values()), len(self.store.contents.unreadable)
        try:
            rows = await self._embed(entries)
        except StoreError:
            raise
        except Exception as error:  # an embedder that is away, say: the next write tries again
            raise StoreVanished(f"{vanished} Its entries cannot be embedded again yet: {error}") from error
        vectors = {entry.id: row for entry, row in zip(entries, rows, strict=True)}
        await self.replace_vectors(vectors, self.store.embedding, lambda: None)
        self._unwanted.clear()
        self.rebuilds += 1
        what = f"{len(entries)} entries" + (f"; {unreadable} that could not be read are lost" if unreadable else "")
        _log.warning("%s It has been made again from memory: %s", vanished, what)

    # The methods below are called by the work that `write` runs.

    async def change(self, new: Sequence[Experience], vectors: np.ndarray, removed: Sequence[str]) -> None:
        """Add and remove entries; a reader sees the whole change or none of it.

        Once the new entries are stored the change is made, also if the store then fails to remove the others: that is
        repeated. Should the process be killed before, `load_repaired` removes what was replaced; what was removed
        without a successor is there again.

        Raises:
            StoreError: If the new entries cannot be stored; nothing has changed, and the change can be repeated.
        """
        added = {entry.id for entry in new}
        if new:
            self._unwanted |= added - self.table.by_id.keys()  # until memory has them
            await self.store.upsert(new, vectors, removed)
        async with self._visible.write():
            self._unwanted -= added
            self._unwanted.update(removed)
            self.table.change(new, removed)
            self.version += 1
        # Last: a process that dies before leaves old and new entries, of which `load_repaired` removes the old ones.
        # The other order could lose a text whose replacement was never stored.
        try:
            await self._delete_unwanted()
        except StoreError:
            self._count_failure()

    async def _delete_unwanted(self) -> None:
        if self._unwanted:
            await self.store.delete([*self._unwanted])
            self._unwanted.clear()

    async def delete(self, ids: Collection[str]) -> int:
        """Remove entries, also points that cannot be read; return how many were there."""
        unreadable = self.store.contents.unreadable
        there = [id for id in ids if id in self.table.by_id]  # also one that a look at the store has found broken
        broken = [id for id in ids if id in unreadable and id not in self.table.by_id]
        await self.store.delete(broken)
        await self.change((), np.zeros((0, 0), np.float32), there)
        for id in (*there, *broken):
            unreadable.pop(id, None)
        return len(there) + len(broken)

    async def clear(self) -> None:
        """Remove all entries, and forget the calls that were applied."""
        await self.delete([*self.table.by_id])
        self.table.applied.clear()

    async def rewrite(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change fields of entries other than texts and counters; counting continues meanwhile."""
        entries = self.table.rewritten(changes)
        try:
            await self.store.update(entries)
        except BaseException:
            self.table.mark_unwritten(entries)  # it may have been done: the next flush writes what memory has
            raise
        async with self._visible.write():
            # Applied again, to the entries of this moment: putting the ones sent to the store into memory would undo
            # what was counted while the store wrote them.
            self.table.rewrite(changes)
            self.version += 1

    async def replace_all(self, entries: Sequence[Experience], vectors: np.ndarray) -> None:
        """Replace all entries, or none if the store fails; readers have the old ones until the new ones are stored."""
        await self.store.replace_all(entries, vectors, switching=self._switching(entries))

    async def replace_vectors(
        self, vectors: Mapping[str, np.ndarray], embedding: dict[str, Any], switched: Callable[[], None]
    ) -> None:
        """Give every entry a new vector, or none if the store fails; counting continues meanwhile.

        Args:
            vectors: By id.
            embedding: Identity of the embedder that made them.
            switched: Called before any query or write uses the new vectors.
        """
        entries = list(self.table.by_id.values())
        rows = np.array([vectors[entry.id] for entry in entries], np.float32).reshape(-1, embedding["dimension"])
        # Counters that move during this call are still marked as unwritten and follow with the next flush.
        await self.store.replace_all(entries, rows, embedding, switching=self._switching(switched=switched))

    @asynccontextmanager
    async def _switching(
        self, entries: Sequence[Experience] | None = None, switched: Callable[[], None] = lambda: None
    ) -> AsyncIterator[None]:
        """Block readers while the store goes over to other content, and put its entries into memory."""
        async with self._visible.write():
            yield
            self.store.contents.unreadable.clear()  # only entries went over
            if entries is not None:
                self.table.replace_all(entries)
            self.version += 1
            switched()

    def statistics(self) -> dict[str, Any]:
        """Return what became of writes; the seconds since the last one of counters are what a kill would lose."""
        return {
            "unreadable": len(self.store.contents.unreadable),
            "counter_flush_failures": self.flush_failures,
            "counters_unwritten_seconds": time.monotonic() - self._written,
            "rebuilds": self.rebuilds,
        }

    async def write_counters(self) -> None:
        """Write the counters that the store does not have yet; if it fails, they stay marked as unwritten."""
        # Taken before the await: an entry counted while the store writes is marked again, and written the next time.
        batch, taken = self.table.take_unwritten(), time.monotonic()
        try:
            await self.store.update(batch)
        except BaseException:
            self.table.mark_unwritten(batch)
            raise
        self._written = taken

    async def quarantine(self, reasons: Mapping[str, str]) -> None:
        """Exclude entries from retrieval, each for its reason. Unknown ids are ignored.

        Raises:
            ValueError: If a reason is empty, which would end the exclusion.
        """
        if not all(reasons.values()):
            raise ValueError("the reason of a quarantine must not be empty")
        await self._mark(reasons)

    async def release(self, ids: Iterable[str]) -> None:
        """End the exclusion of entries. Unknown ids are ignored."""
        await self._mark(dict.fromkeys(ids, ""))

    async def _mark(self, reasons: Mapping[str, str]) -> None:
        async def write() -> None:
            await self.rewrite({id: {"quarantined": why} for id, why in reasons.items() if id in self.table.by_id})

        await self.write(write)

    async def flush(self) -> None:
        """Write the counters and make everything durable."""

        async def write() -> None:
            await self.write_counters()
            await self.store.flush()

        await self.write(write)

    async def close(self) -> None:
        """Wait for the writes that have begun, write the counters, and close the store, also if that fails."""
        flusher, self._flusher = self._flusher, None
        try:
            if flusher is not None:  # neither read-only nor closed before
                flusher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await flusher
                await self.flush()
        finally:
            await self.store.close()

    async def _flush_periodically(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:  # even with nothing to write: a server store renews its writer's lease in `update`
                await self.write(self.write_counters)
            except Exception:  # of whatever kind: the next writes must follow
                self._count_failure()

    def _count_failure(self) -> None:
        """Count the failure that is being handled."""
        if not self.flush_failures:
            _log.exception("counters or removals could not be written to the bank's store; both are tried again")
        self.flush_failures += 1

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError("the experience bank was opened in another event loop; open it where it is used")
