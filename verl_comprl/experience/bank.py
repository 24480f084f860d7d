"""The experience bank: entries that can be found by meaning, changed by an extractor's operations, saved and restored.

Owns the entries while open (text, provenance, counters; the store keeps them), the order of reads and writes, and what
happens when a part fails. Knows nothing of models, queues or training. One event loop.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from cachetools import LRUCache

from verl_comprl.experience.bank_config import BankConfig
from verl_comprl.experience.changes import CLOCK_STEP, ApplyReport, plan_changes
from verl_comprl.experience.embedding import CachedQueries, Embedder
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.operations import Operation
from verl_comprl.experience.qdrant_store import QdrantStore
from verl_comprl.experience.retrieval import MicroBatcher, diversified_rank
from verl_comprl.experience.sanitize import sanitize
from verl_comprl.experience.schema import Add, Experience, Merge, Update, derive_id
from verl_comprl.experience.snapshot import read_snapshot, write_snapshot
from verl_comprl.experience.statistics import BankStatistics, Status
from verl_comprl.experience.store import ExperienceStore, SearchRequest

T = TypeVar("T")

_log = logging.getLogger(__name__)

_COUNTER_BATCH = 256
"""Entries with unwritten counters at which ``apply`` writes them: what a kill can lose while entries come in."""


@dataclass(frozen=True)
class Retrieval:
    """The answer to a query: an entry, nothing in the scope, or a failure of store or embedder (``degraded``)."""

    status: Status
    entry: Experience | None
    seconds: float


@dataclass(frozen=True)
class _Query:
    text: str
    task: str
    environment: str
    read_only: bool
    exclude: frozenset[str]


class ExperienceBank:
    """The bank ``M``. Reads never see half of a write; no lock is held while anything is embedded."""

    def __init__(
        self, config: BankConfig, embedder: Embedder, store: ExperienceStore, entries: list[Experience]
    ) -> None:
        """Use ``open``."""
        self._config = config
        self._embedder = embedder
        self._queries = CachedQueries(embedder)
        self._store = store
        self._lock = ReadWriteLock()
        self._batcher = MicroBatcher(self._answer, max_batch=config.max_batch, max_wait_ms=config.max_wait_ms)
        self._statistics = BankStatistics()
        self._writes: set[asyncio.Task[Any]] = set()
        self._degraded_logged = False
        self._adopt(entries)

    def _adopt(self, entries: Iterable[Experience]) -> None:
        self._entries = {entry.id: entry for entry in entries}  # oldest first
        self._uncounted: set[str] = set()  # entries whose counters the store does not have yet
        # Entries carry the call that wrote them, so a reopened bank still knows the calls whose text it holds.
        self._applied: LRUCache[str, None] = LRUCache(4 * self._config.capacity)
        self._applied.update((entry.record_id, None) for entry in self._entries.values() if entry.record_id)

    @classmethod
    async def open(cls, config: BankConfig, embedder: Embedder) -> Self:
        """Open the bank in ``config.path``, or create it.

        Raises:
            StoreError: If the folder is in use, was built with another embedder or schema, or cannot be read.
        """
        store = await QdrantStore.open(config.path, embedding=embedder.identity, dimension=embedder.dimension)
        try:
            entries = sorted(await store.load(), key=lambda entry: (entry.created_at, entry.id))
            # A process that died between the two halves of a replacement left both the old and the new entry.
            replaced = {parent for entry in entries for parent in entry.parents}
            await store.delete([entry.id for entry in entries if entry.id in replaced])
        except BaseException:
            await store.close()
            raise
        return cls(config, embedder, store, [entry for entry in entries if entry.id not in replaced])

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def get(self, id: str) -> Experience | None:
        """Return an entry with its counters as of now, or None if it is not, or no longer, in the bank."""
        return self._entries.get(id)

    def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        return list(self._entries.values())

    def partitions(self) -> list[list[Experience]]:
        """Return the entries grouped as retrieval separates them; a merge must stay inside one group."""
        if self._config.scope == "all":
            return [self.entries()] if self._entries else []
        groups: dict[str, list[Experience]] = {}
        for entry in self._entries.values():
            groups.setdefault(getattr(entry, self._config.scope), []).append(entry)
        return list(groups.values())

    async def apply(
        self,
        operations: Sequence[Operation],
        *,
        call_id: str,
        listed: Sequence[str],
        task: str,
        environment: str,
        step: int,
        weight_version: int,
        source_trajectory: str = "",
        source_success: bool | None = None,
    ) -> ApplyReport:
        """Carry out the operations of one extractor call, once: the same call again changes nothing.

        A cancelled caller does not interrupt a write that has begun.

        Args:
            operations: What the extractor answered; invalid ones are rejected and counted.
            call_id: Generation record of the call; becomes ``record_id`` of the entries it writes.
            listed: Ids of the entries the prompt listed, which the operations' 1-based indices mean.
            task: Task of the episode; "" for a merge, whose entries inherit what their parents share.
            environment: Likewise.
            step: Training step.
            weight_version: Extractor weights that answered.
            source_trajectory: The episode.
            source_success: Its outcome.

        Raises:
            StoreError: If the store failed; readers see the old state and the call can be applied again. What the
                embedder raises is passed on, likewise before anything has changed.
        """
        clean = [self._sanitized(operation) for operation in operations]
        texts = {
            derive_id(call_id, position): Experience(id="", title=operation.title, content=operation.content).text
            for position, operation in enumerate(clean)
            if isinstance(operation, Add | Update | Merge)
        }
        vectors = dict(zip(texts, await self._embedder.embed_documents(list(texts.values())), strict=True))

        async def write() -> ApplyReport:
            if call_id in self._applied:
                written = tuple(id for id in texts if id in self._entries)
                surviving = tuple(id for id in listed if id in self._entries) + written
                return ApplyReport(new_ids=written, surviving_ids=surviving, repeated=True)
            changes = plan_changes(
                self._entries,
                clean,
                call_id=call_id,
                listed=listed,
                provenance={
                    "task": task,
                    "environment": environment,
                    "created_step": step,
                    "created_at": self._now(),
                    "weight_version": weight_version,
                    "source_trajectory": source_trajectory,
                    "source_success": source_success,
                },
                capacity=self._config.capacity,
            )
            if changes.new:
                await self._store.upsert(changes.new, np.stack([vectors[entry.id] for entry in changes.new]))
            await self._store.delete(changes.removed)
            for id in changes.removed:
                del self._entries[id]
            self._entries.update((entry.id, entry) for entry in changes.new)
            self._applied[call_id] = None
            self._statistics.count_operations(changes.report)
            if len(self._uncounted) >= _COUNTER_BATCH:
                await self._write_counters()
            return changes.report

        return await self._exclusively(write)

    async def retrieve(
        self,
        query: str,
        *,
        task: str = "",
        environment: str = "",
        read_only: bool = False,
        exclude: Iterable[str] = (),
    ) -> Retrieval:
        """Return the entry that Eq. 6 puts first for ``query``; never raises.

        Args:
            query: Text; sanitised and cut like a content.
            task: Looked at if the scope is ``task``.
            environment: Looked at if the scope is ``environment``.
            read_only: Leave the counters alone (evaluation).
            exclude: Ids not to return.
        """
        start = time.perf_counter()
        text = sanitize(query, self._config.max_content_chars)
        entry, status = None, "nothing"
        if self._entries:
            try:
                entry = await self._batcher.submit(_Query(text, task, environment, read_only, frozenset(exclude)))
                status = "found" if entry else "nothing"
            except Exception:
                status = "degraded"
                if not self._degraded_logged:
                    _log.exception("retrieval is degraded: actors get no experience; further failures are only counted")
                    self._degraded_logged = True
        seconds = time.perf_counter() - start
        self._statistics.count_retrieval(status, seconds)
        return Retrieval(status, entry, seconds)

    def record_outcome(self, ids: Iterable[str], success: bool) -> None:
        """Count one use of every entry of ``ids`` that is still there, and its success."""
        for id in ids:
            if (entry := self._entries.get(id)) is not None:
                self._count(entry, uses=entry.uses + 1, successes=entry.successes + success)

    def statistics(self) -> dict[str, Any]:
        """Return the size and what was counted since opening: see ``BankStatistics.as_dict``."""
        return {"size": len(self), **self._statistics.as_dict()}

    async def save(self, folder: str | Path) -> None:
        """Write a consistent snapshot of the bank to ``folder``, replacing one that is there.

        Raises:
            StoreError: If the store cannot give the vectors.
            SnapshotError: If the folder holds anything else.
        """
        async with self._lock.read():
            entries = self.entries()
            vectors = await self._store.vectors([entry.id for entry in entries])
        await asyncio.to_thread(write_snapshot, Path(folder), entries, vectors, self._embedder.identity)

    async def restore(self, folder: str | Path) -> None:
        """Replace the content of the bank by a snapshot, all of it or nothing.

        Raises:
            SnapshotError: If the snapshot is incomplete, damaged, or was made with another embedder or schema.
            StoreError: If the store failed.
        """
        entries, vectors = await asyncio.to_thread(read_snapshot, Path(folder), self._embedder.identity)

        async def write() -> None:
            await self._store.replace_all(entries, vectors)
            self._adopt(entries)

        await self._exclusively(write)

    async def flush(self) -> None:
        """Write the counters and make everything durable; the engine may hold the process for a few 100 ms."""

        async def write() -> None:
            await self._write_counters()
            await self._store.flush()

        await self._exclusively(write)

    async def close(self) -> None:
        """Finish what is under way, write the counters and let go of the folder."""
        await self._batcher.drain()
        try:
            await self._exclusively(self._write_counters)
        finally:
            await self._store.close()

    async def _exclusively(self, write: Callable[[], Awaitable[T]]) -> T:
        async def locked() -> T:
            async with self._lock.write():
                return await write()

        task = asyncio.create_task(locked())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        # A write that stopped half way would let readers in between its halves.
        return await asyncio.shield(task)

    async def _answer(self, queries: list[_Query]) -> list[Experience | None]:
        """Answer a micro-batch: embed, then search and choose under the read lock."""
        vectors = await self._queries.embed([query.text for query in queries])
        requests = [
            SearchRequest(
                vector,
                self._config.retrieval_pool,
                task=query.task if self._config.scope == "task" else None,
                environment=query.environment if self._config.scope == "environment" else None,
                exclude=query.exclude,
            )
            for query, vector in zip(queries, vectors, strict=True)
        ]
        async with self._lock.read():
            pools = await self._store.search(requests)
            return [self._choose(query, pool) for query, pool in zip(queries, pools, strict=True)]

    def _choose(self, query: _Query, pool: Sequence[str]) -> Experience | None:
        candidates = [self._entries[id] for id in pool if id in self._entries]
        now = time.time()
        best = diversified_rank(
            [entry.id for entry in candidates],
            [entry.retrievals for entry in candidates],
            [entry.last_retrieved_at for entry in candidates],
            now,
            lam=self._config.diversity,
            recency=self._config.recency_seconds,
        )
        if not best:
            return None
        entry = self._entries[best[0]]
        if query.read_only:
            return entry
        return self._count(entry, retrievals=entry.retrievals + 1, last_retrieved_at=now)

    def _count(self, entry: Experience, **counters: float) -> Experience:
        self._entries[entry.id] = entry = entry.model_copy(update=counters)
        self._uncounted.add(entry.id)
        return entry

    async def _write_counters(self) -> None:
        batch, self._uncounted = self._uncounted, set()
        try:
            await self._store.update([self._entries[id] for id in batch if id in self._entries])
        except BaseException:
            self._uncounted |= batch
            raise

    def _now(self) -> float:
        # Strictly increasing, so that entries keep their order when the bank is opened again.
        newest = next(reversed(self._entries.values())).created_at if self._entries else 0.0
        return max(time.time(), newest + CLOCK_STEP)

    def _sanitized(self, operation: Operation) -> Operation:
        if not isinstance(operation, Add | Update | Merge):
            return operation
        title = sanitize(operation.title, self._config.max_title_chars)
        content = sanitize(operation.content, self._config.max_content_chars)
        return operation.model_copy(update={"title": title, "content": content})
