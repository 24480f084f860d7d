"""The experience bank: entries that can be found by meaning, changed by an extractor's operations, saved and restored.

Owns what is written and what a query finds. How a change reaches memory and store is ``ledger``, the meaning of
operations ``changes``, the ranking ``retrieval``. Knows nothing of models, queues or training. One event loop.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NoReturn, Self

import numpy as np

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import Embedder
from verl_comprl.experience.embedding.none import NoEmbedder
from verl_comprl.experience.entries import EntryTable
from verl_comprl.experience.ledger import Ledger, load_repaired
from verl_comprl.experience.retrieval.retriever import Retrieval, Retriever
from verl_comprl.experience.schema import Add, Experience, Merge, Update, derive_id
from verl_comprl.experience.statistics import BankStatistics
from verl_comprl.experience.store import open_store
from verl_comprl.experience.store.base import ExperienceStore
from verl_comprl.experience.transfer.transfer import (
    ImportReport,
    add_snapshot,
    reembed,
    restore_snapshot,
    save_snapshot,
)
from verl_comprl.experience.transfer.verify import find_problems
from verl_comprl.experience.updates.parsing import Operation, cleaned
from verl_comprl.experience.updates.planning import ApplyReport, plan_changes
from verl_comprl.experience.updates.quality import bad_records, duplicates
from verl_comprl.experience.updates.sanitize import Tokenizer, cap_tokens, sanitize


class ExperienceBank:
    """The bank ``M``. Reads never see half of a write; no lock is held while anything is embedded."""

    def __init__(
        self,
        config: BankConfig,
        embedder: Embedder,
        store: ExperienceStore,
        entries: Iterable[Experience],
        *,
        tokenizer: Tokenizer | None,
        read_only: bool,
    ) -> None:
        """Use ``open``."""
        self._config = config
        self._embedder = embedder
        self._tokenizer = tokenizer
        self._table = EntryTable(entries, max_calls=4 * config.capacity)
        self._ledger = Ledger(store, self._table, flush_seconds=config.flush_seconds, read_only=read_only)
        self._retriever = Retriever(config, embedder, self._ledger)
        self._read_only = read_only
        self._statistics = BankStatistics()

    @classmethod
    async def open(
        cls,
        config: BankConfig,
        embedder: Embedder | None,
        *,
        tokenizer: Tokenizer | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open the bank of ``config``, or create it.

        Args:
            config: Where it lives and how it answers.
            embedder: None opens a bank that exists for everything that needs no embedding.
            tokenizer: Of the model that will read the entries: it measures ``config.max_content_tokens``.
            read_only: Change nothing, neither now nor later. A server's bank can so be read beside the run that
                writes it.

        Raises:
            StoreError: If the bank is in use, was built with another embedder or schema, or cannot be read.
        """
        identity = embedder.identity if embedder else None
        store = await open_store(config, identity, read_only=read_only)
        try:
            entries = await load_repaired(store, read_only=read_only)
        except BaseException:
            await store.close()
            raise
        embedder = embedder or NoEmbedder(store.embedding)
        return cls(config, embedder, store, entries, tokenizer=tokenizer, read_only=read_only)

    def __reduce__(self) -> NoReturn:
        """Refuse: a copy in another process would be a second writer."""
        raise TypeError("an open experience bank cannot be sent to another process; open it there, once")

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._table.by_id)

    @property
    def embedding(self) -> dict[str, Any]:
        """Identity of the embedder whose vectors the bank holds."""
        return self._ledger.store.embedding

    def get(self, id: str) -> Experience | None:
        """Return an entry with its counters as of now, or None if it is not, or no longer, in the bank."""
        return self._table.by_id.get(id)

    def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        return list(self._table.by_id.values())

    def partitions(self) -> list[list[Experience]]:
        """Return the entries by task: what a merge may take together, each group independent of the others.

        Without those in quarantine: merged with others, their text would be found again.
        """
        groups: dict[str, list[Experience]] = {}
        for entry in self._table.by_id.values():
            if not entry.quarantined:
                groups.setdefault(entry.task, []).append(entry)
        return list(groups.values())

    # ---- writing ----

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
            StoreError: If the store failed. Nothing has changed then, nor if the embedder raises, which is passed on.
        """
        clean = [cleaned(operation, self._clean) for operation in operations]
        texts = {
            derive_id(call_id, position): Experience(id="", title=operation.title, content=operation.content).text
            for position, operation in enumerate(clean)
            if isinstance(operation, Add | Update | Merge)
        }
        vectors = dict(zip(texts, await self._embedder.embed_documents(list(texts.values())), strict=True))

        async def write() -> ApplyReport:
            entries = self._table.by_id
            if call_id in self._table.applied:
                written = tuple(id for id in texts if id in entries)
                return ApplyReport(
                    new_ids=written,
                    surviving_ids=tuple(id for id in listed if id in entries) + written,
                    repeated=True,
                )
            additions = {
                position: vectors[derive_id(call_id, position)]
                for position, operation in enumerate(clean)
                if isinstance(operation, Add)
            }
            changes = plan_changes(
                entries,
                clean,
                call_id=call_id,
                listed=listed,
                provenance={
                    "task": task,
                    "environment": environment,
                    "created_step": step,
                    "created_at": self._table.now(),
                    "weight_version": weight_version,
                    "source_trajectory": source_trajectory,
                    "source_success": source_success,
                },
                capacity=self._config.capacity,
                duplicates=await duplicates(
                    self._ledger.store,
                    additions,
                    threshold=self._config.dedup_similarity,
                    scope=self._scope(task, environment),
                ),
            )
            if changes.new or changes.removed:
                new_vectors = np.array([vectors[entry.id] for entry in changes.new], dtype=np.float32)
                await self._ledger.change(changes.new, new_vectors, changes.removed)
            for id, votes in changes.upvotes.items():
                self._table.count(id, upvotes=entries[id].upvotes + votes)
            for id, votes in changes.downvotes.items():
                self._table.count(id, downvotes=entries[id].downvotes + votes)
            self._table.applied[call_id] = None
            self._statistics.count_operations(changes.report)
            return changes.report

        return await self._ledger.write(write)

    def record_outcome(self, ids: Iterable[str], success: bool) -> None:
        """Count one use of every entry of ``ids`` that is still there, and its success."""
        for id in ids:
            if (entry := self.get(id)) is not None:
                self._table.count(id, uses=entry.uses + 1, successes=entry.successes + success)

    def record_training(self, record_ids: Iterable[str], step: int) -> None:
        """Count one CISPO sample of each generation record with the entries that it wrote."""
        for record_id in record_ids:
            for id in self._table.written_by(record_id):
                self._table.count(id, trainings=self._table.by_id[id].trainings + 1, last_trained_step=step)

    async def retire(self, free_outcomes: Mapping[str, Collection[bool]]) -> list[str]:
        """Quarantine entries whose record is worse than no experience, and return their ids.

        Args:
            free_outcomes: Latest outcomes of the free half, by task; entries of other tasks are left alone.
        """
        reasons = bad_records(
            self._table.by_id.values(),
            free_outcomes,
            min_uses=self._config.retire_min_uses,
            margin=self._config.retire_margin,
        )
        if reasons:
            await self._quarantine(reasons)
        return list(reasons)

    async def quarantine(self, ids: Iterable[str], reason: str) -> None:
        """Keep entries from being retrieved. Unknown ids are ignored."""
        await self._quarantine(dict.fromkeys(ids, reason))

    async def release(self, ids: Iterable[str]) -> None:
        """Let quarantined entries be retrieved again."""
        await self._quarantine(dict.fromkeys(ids, ""))

    async def delete(self, ids: Iterable[str]) -> int:
        """Remove entries and return how many were there."""

        async def write() -> int:
            there = [id for id in dict.fromkeys(ids) if id in self._table.by_id]
            await self._ledger.change((), np.zeros((0, 0), np.float32), there)
            return len(there)

        return await self._ledger.write(write)

    async def _quarantine(self, reasons: Mapping[str, str]) -> None:
        async def write() -> None:
            there = {id: reason for id, reason in reasons.items() if id in self._table.by_id}
            await self._ledger.rewrite({id: {"quarantined": reason} for id, reason in there.items()})

        await self._ledger.write(write)

    # ---- reading ----

    async def retrieve(
        self,
        query: str,
        *,
        task: str = "",
        environment: str = "",
        read_only: bool = False,
        exclude: Iterable[str] = (),
        max_step: int | None = None,
        at_random: Random | None = None,
        evaluation_id: str = "",
    ) -> Retrieval:
        """Return the entry that Eq. 6 puts first for ``query``; never raises.

        Args:
            query: Text; sanitised and cut like a content.
            task: Looked at if the scope is ``task``.
            environment: Looked at if the scope is ``environment``.
            read_only: Leave all counters alone (evaluation).
            exclude: Ids not to return.
            max_step: Only entries created at this step or before; None for any.
            at_random: Draws any entry of the scope instead (exploration).
            evaluation_id: Name of an evaluation; retrievals count only for later queries of the same name (Eq. 6).
        """
        start = time.perf_counter()
        entry, status = await self._retriever.retrieve(
            query,
            scope=self._scope(task, environment),
            exclude=frozenset(exclude),
            max_step=max_step,
            count=not (read_only or self._read_only),
            at_random=at_random,
            evaluation_id=evaluation_id,
        )
        seconds = time.perf_counter() - start
        if not read_only:
            self._statistics.count_retrieval(status, seconds)
        return Retrieval(status, entry, seconds)

    async def search(self, query: str, limit: int = 10) -> list[tuple[Experience, float]]:
        """Return the entries most similar to ``query`` with their cosine similarities, for people; counts nothing.

        Raises:
            StoreError: If the store failed. What the embedder raises is passed on.
        """
        return await self._retriever.search(query, limit)

    def statistics(self) -> dict[str, Any]:
        """Return the size and what was counted since opening: see ``BankStatistics.as_dict``."""
        return {
            "size": len(self),
            "quarantined": len(self._table.quarantined),
            "counter_flush_failures": self._ledger.flush_failures,
            **{f"queries_{name}": count for name, count in self._retriever.queries.counts.items()},
            **self._statistics.as_dict(),
        }

    async def verify(self) -> list[str]:
        """Compare memory and store entry by entry; return what is wrong, in words.

        Raises:
            StoreError: If the store cannot be read at all.
        """
        async with self._ledger.reading():
            return await find_problems(self._ledger.store, self._table.by_id)

    def _scope(self, task: str, environment: str) -> tuple[str | None, str | None]:
        scope = self._config.scope
        return task if scope == "task" else None, environment if scope == "environment" else None

    def _clean(self, title: str, content: str) -> tuple[str, str]:
        title = sanitize(title, self._config.max_title_chars)
        content = sanitize(content, self._config.max_content_chars)
        if self._tokenizer is not None:
            content = cap_tokens(content, self._tokenizer, self._config.max_content_tokens)
        return title, content

    # ---- moving and closing ----

    async def save(self, folder: str | Path) -> None:
        """Write a consistent snapshot of the bank to ``folder``, replacing one that is there.

        Raises:
            StoreError: If the store cannot give the vectors.
            SnapshotError: If the folder holds anything else.
        """
        await save_snapshot(self._ledger, Path(folder))

    async def restore(self, folder: str | Path) -> None:
        """Replace the content of the bank by a snapshot, all of it or nothing.

        Raises:
            SnapshotError: If the snapshot is incomplete, damaged, or was made with another embedder or schema.
            StoreError: If the store failed.
        """
        await restore_snapshot(self._ledger, Path(folder))

    async def add_snapshot(self, folder: str | Path, *, reembed: bool = False) -> ImportReport:
        """Add the entries of a snapshot that are missing; their texts are sanitised like any other.

        Args:
            folder: What ``save`` wrote, here or elsewhere.
            reembed: Embed the texts with this bank's embedder instead of taking the snapshot's vectors.

        Raises:
            SnapshotError: If the snapshot is incomplete or damaged, or was made with another embedder or schema.
            StoreError: If the store failed. What the embedder raises is passed on.
        """
        return await add_snapshot(
            self._ledger,
            Path(folder),
            self._embedder if reembed else None,
            clean=self._clean,
            capacity=self._config.capacity,
        )

    async def reembed(self, embedder: Embedder) -> None:
        """Give every entry a vector of another embedder, which the bank uses from then on.

        Raises:
            StoreError: If the store failed; the bank stays as it was. What the embedder raises is passed on.
        """
        await reembed(self._ledger, embedder)
        self._embedder = embedder
        self._retriever.use(embedder)

    async def flush(self) -> None:
        """Write the counters and make everything durable; the engine may hold the process for a few 100 ms."""
        await self._ledger.flush()

    async def close(self) -> None:
        """Finish what is under way, write the counters and let go of the storage."""
        await self._retriever.drain()
        await self._ledger.close()
