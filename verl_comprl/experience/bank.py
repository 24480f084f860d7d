"""The experience bank: stores entries, retrieves them by meaning, and applies the extractor's operations to them.

Owns the public methods and what they decide. Changes reach memory and store through ``ledger``, operations are
interpreted in ``updates.planning``, queries are answered in ``retrieval.retriever``. Knows nothing of models, queues or
training. A bank belongs to one event loop.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from verl_comprl.experience.application import apply_operations, new_documents
from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import Embedder
from verl_comprl.experience.embedding.none import NoEmbedder
from verl_comprl.experience.embedding.vector_cache import VectorCache
from verl_comprl.experience.entries import EntryTable
from verl_comprl.experience.ledger import Ledger, load_repaired
from verl_comprl.experience.merge_plan import plan_merge
from verl_comprl.experience.retrieval.retriever import Retrieval, Retriever
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.statistics import BankStatistics
from verl_comprl.experience.store import open_store
from verl_comprl.experience.store.base import ExperienceStore
from verl_comprl.experience.transfer import transfer
from verl_comprl.experience.transfer.verify import find_problems
from verl_comprl.experience.updates.parsing import Operation, cleaned
from verl_comprl.experience.updates.planning import ApplyReport, descendants
from verl_comprl.experience.updates.quality import bad_records
from verl_comprl.experience.updates.sanitize import Tokenizer, clean_texts


class ExperienceBank:
    """The bank ``M`` of the paper. A read never sees half of a write; no lock is held while texts are embedded."""

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
        self._documents = VectorCache(embedder.embed_documents)
        self._clean = partial(clean_texts, config=config, tokenizer=tokenizer)
        self._table = EntryTable(entries, max_calls=4 * config.capacity)
        self._ledger = Ledger(store, self._table, self._embed_entries, config.flush_seconds, read_only=read_only)
        self._retriever = Retriever(config, embedder, self._ledger)
        self.random = self._retriever.random
        """Source of chance for exploration and candidate dropout; seed it to repeat what was drawn."""
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
            config: Its place and settings.
            embedder: None opens an existing bank for everything that needs no embedding.
            tokenizer: Tokenizer of the model that reads the entries; counts ``config.max_content_tokens``.
            read_only: Refuse every write. This way other processes can open a server's bank while a run writes it.

        Raises:
            ValueError: If duplicates are to be rejected and the embedder reads titles only.
            StoreError: If the bank is in use, was built with another embedder or schema, or cannot be read.
        """
        if config.dedup_similarity and embedder and embedder.identity.get("documents") == "title":
            raise ValueError("embedder.documents=title cannot tell duplicates: set bank.dedup_similarity=0")
        store = await open_store(config, embedder.identity if embedder else None, read_only=read_only)
        embedder = embedder or NoEmbedder(store.embedding)
        entries = await load_repaired(store, read_only=read_only)
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

    @property
    def unreadable(self) -> dict[str, str]:
        """Reason by id, for entries of the store that this release cannot read; `delete` removes them."""
        return dict(self._ledger.store.contents.unreadable)

    def get(self, id: str) -> Experience | None:
        """Return an entry with its current counters, or None if the bank does not hold it."""
        return self._table.by_id.get(id)

    def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        return list(self._table.by_id.values())

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
        """Apply the operations of one extractor call. A call that was applied before changes nothing.

        Cancelling the caller does not stop a write that has started.

        Args:
            operations: The parsed answer of the extractor; invalid operations are rejected and counted.
            call_id: Generation record of the call; becomes ``record_id`` of the entries it writes.
            listed: Ids of the entries in the prompt, in its order; operations refer to them by 1-based index.
            task: Task of the episode, which its entries get in addition to those of the entries they replace; "" for a
                merge.
            environment: Environment of the episode, likewise.
            step: Training step.
            weight_version: Version of the extractor weights that wrote the answer.
            source_trajectory: Id of the episode.
            source_success: Outcome of the episode.

        Raises:
            StoreError: If the store failed. Readers then still see the old entries, and the call can be repeated. An
                exception of the embedder is passed on; nothing has changed then.
        """
        clean = [cleaned(operation, self._clean) for operation in operations]
        embedder, vectors = self._embedder, await self._vectors(clean)

        async def write() -> ApplyReport | None:
            if self._embedder is not embedder:
                return None
            report = await apply_operations(
                self._ledger,
                clean,
                vectors,
                call_id=call_id,
                listed=listed,
                provenance={
                    "tasks": [task] if task else [],
                    "environments": [environment] if environment else [],
                    "created_step": step,
                    "weight_version": weight_version,
                    "source_trajectory": source_trajectory,
                    "source_success": source_success,
                },
                scope=self._scope(task, environment),
                config=self._config,
            )
            self._statistics.count_operations(report)
            return report

        while (report := await self._ledger.write(write)) is None:  # embedded again meanwhile: other vectors are needed
            embedder, vectors = self._embedder, await self._vectors(clean)
        return report

    async def embed(self, operations: Sequence[Operation]) -> None:
        """Embed the new texts of a call before ``apply``, which finds their vectors and does not wait for them."""
        await self._vectors([cleaned(operation, self._clean) for operation in operations])

    async def _vectors(self, operations: Sequence[Operation]) -> dict[int, np.ndarray]:
        texts = new_documents(operations, self._embedder.identity)
        return dict(zip(texts, await self._documents.embed([*texts.values()]), strict=True))

    async def _embed_entries(self, entries: Sequence[Experience]) -> np.ndarray:
        return await transfer.embed(self._embedder, entries)

    def record_outcome(self, ids: Iterable[str], success: bool, *, task: str = "", asked: bool = False) -> None:
        """Count an episode that read the entries ``ids``, and whether it succeeded; unknown ids are ignored.

        Args:
            ids: Entries that guided the episode.
            success: Outcome of the episode.
            task: Its task; outcomes are counted by task.
            asked: Whether the entries did not guide the episode, but answers to its questions rested on them.
        """
        for id in ids:
            self._table.count_outcome(id, task, success, asked=asked)

    def record_comparison(
        self, ids: Iterable[str], success: bool, free_success: float, *, task: str = "", asked: bool = False
    ) -> None:
        """Compare an outcome, which ``record_outcome`` has counted, with the free half's success in that step."""
        for id in ids:
            weight = self._config.asked_weight if asked else 1.0
            self._table.count_comparison(id, task, success, free_success, weight=weight)

    def record_training(self, record_ids: Iterable[str], step: int) -> None:
        """Count one CISPO sample for every entry that the given generation records wrote."""
        for record_id in record_ids:
            self._table.count_training(record_id, step)

    async def retire(self) -> list[str]:
        """Quarantine entries whose success rate is worse than that of no experience, and return their ids."""
        reasons = bad_records(
            self._table.by_id.values(), min_uses=self._config.retire_min_uses, margin=self._config.retire_margin
        )
        if reasons:
            await self._ledger.quarantine(reasons)
        return list(reasons)

    async def quarantine(self, ids: Iterable[str], reason: str) -> None:
        """Exclude entries from retrieval without removing them; unknown ids are ignored, an empty reason refused."""
        await self._ledger.quarantine(dict.fromkeys(ids, reason))

    async def release(self, ids: Iterable[str]) -> None:
        """Make quarantined entries retrievable again."""
        await self._ledger.release(ids)

    async def delete(self, ids: Iterable[str]) -> int:
        """Remove entries, also unreadable ones, and return how many were there."""
        return await self._ledger.write(partial(self._ledger.delete, dict.fromkeys(ids)))

    async def clear(self) -> None:
        """Remove all entries, and forget which calls were applied: one of the same name is a new one then."""
        await self._ledger.write(self._ledger.clear)

    # ---- reading ----

    async def retrieve(
        self,
        query: str,
        *,
        task: str = "",
        environment: str = "",
        read_only: bool = False,
        explore: bool = False,
    ) -> Retrieval:
        """Return the best entry for ``query``; never raises.

        Eq. 6 ranks the most similar entries, so that equal queries get different ones. With ``read_only`` similarity
        and success decide, see ``ranking.evaluation_score``: equal queries get the same entry.

        Args:
            query: Text; sanitised and cut like the content of an entry.
            task: Used if the configured scope is ``task``, and by exploration.
            environment: Used if the configured scope is ``environment``.
            read_only: Change no counters (evaluation). A bank opened as ``read_only`` never does.
            explore: Draw one of the least used entries of the scope instead of ranking; of those of ``task``, if there
                are any.
        """
        start = time.perf_counter()
        entry, status = await self._retriever.retrieve(
            query,
            scope=self._scope(task, environment),
            count=not (read_only or self._ledger.read_only),
            explore=explore,
            task=task,
        )
        seconds = time.perf_counter() - start
        if not read_only:
            self._statistics.count_retrieval(status, seconds)
        return Retrieval(status, entry, seconds)

    async def search(self, query: str, limit: int = 10) -> list[tuple[Experience, float]]:
        """Return the entries most similar to ``query`` with their cosine similarities, for inspection; counts nothing.

        Raises:
            StoreError: If the store failed. What the embedder raises is passed on.
        """
        return await self._retriever.search(query, limit)

    async def nearest(
        self, text: str, limit: int, *, task: str = "", environment: str = "", exclude: Iterable[str] = ()
    ) -> list[Experience]:
        """Return the entries that a query may find, most similar to ``text`` first; counts nothing.

        Args:
            text: Sanitised and cut like a query.
            limit: Number of entries wanted.
            task: Used if the configured scope is ``task``.
            environment: Used if the configured scope is ``environment``.
            exclude: Ids not to return; neither are the entries that have replaced them.

        Raises:
            StoreError: If the store failed. What the embedder raises is passed on.
        """
        known = descendants(exclude, self._table.current)
        scope = self._scope(task, environment)
        hits = await self._retriever.search(text, limit, scope=scope, exclude=frozenset(known), quarantined=False)
        return [entry for entry, _ in hits]

    async def merge_chunks(self, size: int) -> list[list[list[str]]]:
        """Return the ids of all entries as the merge reads them: groups of chunks of ``size``; see ``updates.merge``.

        Raises:
            StoreError: If the store cannot give the vectors.
        """
        return await plan_merge(self._ledger, self._config.scope, size)

    def statistics(self) -> dict[str, Any]:
        """Return the size and the counts since opening; see ``BankStatistics.as_dict``."""
        return {
            "size": len(self),
            "quarantined": len(self._table.quarantined),
            **self._ledger.statistics(),
            **{f"queries_{name}": count for name, count in self._retriever.queries.counts.items()},
            **self._statistics.as_dict(),
        }

    async def verify(self) -> list[str]:
        """Compare memory and store entry by entry; return the differences, one line each.

        Raises:
            StoreError: If the store cannot be read at all, or what a failed write has left in it cannot be deleted.
        """
        if not self._ledger.read_only:  # as a writer, so that no other puts an entry into the store meanwhile
            return await self._ledger.write(lambda: find_problems(self._ledger.store, self._table.by_id))
        async with self._ledger.reading():
            return await find_problems(self._ledger.store, self._table.by_id)

    def _scope(self, task: str, environment: str) -> tuple[str | None, str | None]:
        scope = self._config.scope
        return task if scope == "task" else None, environment if scope == "environment" else None

    # ---- snapshots and closing ----

    async def save(self, folder: str | Path) -> None:
        """Write a consistent snapshot of the bank to ``folder``, replacing an older one.

        Raises:
            StoreError: If the store cannot give the vectors.
            SnapshotError: If the folder holds other files, or cannot be written.
        """
        await transfer.save_snapshot(self._ledger, Path(folder))

    async def restore(self, folder: str | Path, quarantined: Mapping[str, str] | None = None) -> list[str]:
        """Replace the content by a snapshot, as a whole; return the ids of those that only ``quarantined`` excludes.

        Raises:
            SnapshotError: If the snapshot is incomplete, damaged, or was made with another embedder or schema.
            StoreError: If the store failed.
        """
        return await transfer.restore_snapshot(self._ledger, Path(folder), quarantined or {})

    async def add_snapshot(self, folder: str | Path, *, reembed: bool = False) -> transfer.ImportReport:
        """Add the entries of a snapshot that the bank does not hold; their texts are sanitised.

        Args:
            folder: A snapshot that ``save`` wrote, of this bank or another.
            reembed: Embed the texts with this bank's embedder instead of taking the snapshot's vectors.

        Raises:
            SnapshotError: If the snapshot is incomplete or damaged, or was made with another embedder or schema.
            StoreError: If the store failed. What the embedder raises is passed on.
        """
        return await transfer.add_snapshot(
            self._ledger,
            Path(folder),
            self._embedder if reembed else None,
            clean=self._clean,
            capacity=self._config.capacity,
        )

    async def reembed(self, embedder: Embedder) -> None:
        """Embed every entry again with another embedder, which the bank uses from then on.

        Raises:
            StoreError: If the store failed; the bank is unchanged. What the embedder raises is passed on.
        """

        def use() -> None:
            self._embedder = embedder
            self._documents = VectorCache(embedder.embed_documents)
            self._retriever.use(embedder)

        await transfer.reembed(self._ledger, embedder, use)

    async def flush(self) -> None:
        """Write the counters and make everything durable; the engine may block the process for some 100 ms."""
        await self._ledger.flush()

    async def close(self) -> None:
        """Wait for pending queries and writes, write the counters and close the store."""
        await self._retriever.drain()
        await self._ledger.close()
