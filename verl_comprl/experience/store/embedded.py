"""Experience store on Qdrant's embedded engine: one folder, one process, no server.

Owns the folder, its identity file and every call into the engine. The engine holds the GIL during updates and flushes,
so these are made in small batches in a worker thread. Ranking is in ``retrieval``.
"""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import numpy as np
import qdrant_edge as edge

from verl_comprl.errors import panics_as_errors
from verl_comprl.experience.schema import SCHEMA_VERSION, Experience
from verl_comprl.experience.store.base import ExperienceStore, Hit, SearchRequest, check_vectors, stack_rows
from verl_comprl.experience.store.errors import StoreError
from verl_comprl.experience.store.folder import IDENTITY, check_adoptable, check_bank_folder, check_room, lock_bank
from verl_comprl.experience.store.payload import (
    KEYWORD_FIELDS,
    QUARANTINED,
    Contents,
    as_json,
    point_id,
    to_payload,
    verified_embedding,
)
from verl_comprl.files import write_atomically

T = TypeVar("T")

_WRITE_BATCH = 32
_READ_BATCH = 256
_EXACT_BELOW = 4096
"""Number of entries below which every vector is compared exactly; that takes less than a quarter of a millisecond."""
_TURN_SECONDS = 0.002
"""Time of searching after which other tasks of the event loop run."""
_COARSE = edge.SearchParams(quantization=edge.QuantizationSearchParams(rescore=True, oversampling=4.0))
_EXACT = edge.SearchParams(exact=True)


class EmbeddedStore(ExperienceStore):
    """Embedded Qdrant. Layout of the folder: ``lock``, ``bank.json`` (identity, name of the live shard), ``shard-<n>``.

    Vectors are compared by dot product: they are normalised already, and for cosine the engine would normalise them
    again and change bits. Large banks are scanned with vectors quantised to 4 bits and the best candidates are scored
    again exactly. That is five times as fast, and there is no index to rebuild while the bank answers queries
    (``benchmarks/retrieval.py``).
    """

    def __init__(self, folder: Path, embedding: dict[str, Any] | None) -> None:
        """Use ``open``. This locks the folder and opens no shard yet."""
        self._folder = folder
        self._wanted = embedding
        self._lock = lock_bank(folder)
        self._pid = os.getpid()
        # A thread for writes and one for long reads: the engine can read while it writes.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experience-writer")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experience-reader")
        self._searching = asyncio.Lock()
        self._params: edge.SearchParams | None = None  # depends on the number of entries; None after a write
        self._closed = False
        self.contents = Contents()
        self._shard: edge.EdgeShard
        self._shard_number = 0

    @classmethod
    async def open(cls, path: str | Path, *, embedding: dict[str, Any] | None, create: bool = True) -> Self:
        """Open the bank folder ``path``, or create it.

        Args:
            path: Folder; locked until ``close``.
            embedding: Identity of the embedder, with its ``dimension``; stored at creation, compared at every later
                opening. None opens an existing bank with the identity it has.
            create: Whether a bank that does not exist is created, which needs ``embedding``.

        Raises:
            StoreError: If the folder is in use, was built with another embedder or schema, cannot be read, does not
                exist and must not be created, or holds other files than a bank's.
            StoreUnavailable: If the disk is full. Every later change raises it, too; what is read needs no room.
        """
        folder = Path(path)
        if not (create and embedding):
            check_bank_folder(folder)
        store = cls(folder, embedding)
        try:
            await store._write(store._open_shard, to_open=(folder / IDENTITY).exists())
        except BaseException:
            store._release()
            raise
        return store

    async def load(self) -> list[Experience]:
        contents = Contents()
        offset = None
        while True:
            request = edge.ScrollRequest(offset=offset, limit=_READ_BATCH, with_payload=True)
            records, offset = await self._read(lambda request=request: self._shard.scroll(request))
            for record in records:
                contents.add(record.id, record.payload)
            if offset is None:
                self.contents = contents
                return contents.entries

    async def count(self) -> int:
        return await self._read(lambda: self._shard.count(edge.CountRequest(exact=True)))

    async def search(self, requests: Sequence[SearchRequest]) -> list[list[Hit]]:
        if not requests:
            return []
        vectors = check_vectors(
            np.stack([request.vector for request in requests]), count=len(requests), dimension=self.dimension
        )
        self._check_usable()
        if self._params is None:
            with self._failures():
                count = self._shard.count(edge.CountRequest(exact=False))
            self._params = _EXACT if count < _EXACT_BELOW else _COARSE
        found: list[list[Hit]] = []
        # In the event loop's own thread: under load, handing a search to another thread takes longer than the search,
        # because the two compete for the GIL (p99 of 1,024 concurrent queries: 100 instead of 135 ms). Other tasks run
        # every few milliseconds; without the lock each of several searches would take such a turn before they do.
        async with self._searching:
            started = time.perf_counter()
            for request, vector in zip(requests, vectors, strict=True):
                if time.perf_counter() - started > _TURN_SECONDS:
                    await asyncio.sleep(0)
                    started = time.perf_counter()
                found.append(self._search(request, vector, self._params))
            await asyncio.sleep(0)
        return found

    async def upsert(self, entries: Sequence[Experience], vectors: np.ndarray, replaces: Sequence[str] = ()) -> None:
        check_vectors(vectors, count=len(entries), dimension=self.dimension)
        await self._upsert(self._shard, entries, vectors, replaces)

    async def update(self, entries: Sequence[Experience]) -> None:
        def write(batch: Sequence[Experience]) -> None:
            there = {str(record.id) for record in self._shard.retrieve([entry.id for entry in batch], False, False)}
            for entry in batch:
                if entry.id in there:  # the engine refuses an unknown id
                    self._shard.update(edge.UpdateOperation.set_payload([entry.id], to_payload(entry)))

        for start in range(0, len(entries), _WRITE_BATCH):
            await self._write(lambda start=start: write(entries[start : start + _WRITE_BATCH]))

    async def delete(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _WRITE_BATCH):
            operation = edge.UpdateOperation.delete_points([*map(point_id, ids[start : start + _WRITE_BATCH])])
            await self._write(lambda operation=operation: self._shard.update(operation))

    async def vectors(self, ids: Sequence[str]) -> np.ndarray:
        found: dict[str, np.ndarray] = {}
        for start in range(0, len(ids), _READ_BATCH):
            batch: list[int | UUID | str] = list(ids[start : start + _READ_BATCH])
            found.update(await self._read(lambda batch=batch: _vectors(self._shard.retrieve(batch, False, True))))
        return stack_rows(ids, found, self.dimension)

    async def replace_all(
        self,
        entries: Sequence[Experience],
        vectors: np.ndarray,
        embedding: dict[str, Any] | None = None,
        *,
        switching: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        identity = self.embedding if embedding is None else as_json(embedding)
        check_vectors(vectors, count=len(entries), dimension=identity["dimension"])
        number = self._shard_number + 1
        fresh = await self._write(lambda: self._create_shard(number, identity["dimension"]))
        # bank.json names the live shard, so the atomic write of this file decides: a crash before it leaves the old
        # shard live, a crash after it the new one, and `_open_shard` removes the other.
        try:
            await self._upsert(fresh, entries, vectors)
            await self._write(fresh.flush)
            await self._write(lambda: self._write_identity(number, identity))
        except BaseException:
            await self._call(self._writer, lambda: self._abandon(number, fresh))
            raise
        async with switching or nullcontext():
            old, old_number = self._shard, self._shard_number
            self._shard, self._shard_number, self._params = fresh, number, None
            self.embedding, self.dimension = identity, identity["dimension"]
        await self._call(self._writer, lambda: self._discard(old_number, old))

    async def flush(self) -> None:
        await self._write(self._shard.flush)

    async def close(self) -> None:
        if self._closed:
            return
        try:
            await self._call(self._writer, self._close_shard)
        finally:
            self._release()

    def _release(self) -> None:
        self._closed = True
        self._writer.shutdown(wait=False)
        self._reader.shutdown(wait=False)
        self._lock.release()

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._call(self._reader, work)

    async def _write(self, work: Callable[[], T], *, to_open: bool = False) -> T:
        """Do what may make the files larger, unless the disk is full."""

        def with_room() -> T:
            check_room(self._folder, to_open=to_open)
            return work()

        try:
            return await self._call(self._writer, with_room)
        finally:
            self._params = None

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"experience bank {self._folder} was opened in process {self._pid}, this is a fork of it")
        if self._closed:
            raise StoreError(f"experience bank {self._folder} is closed")

    async def _call(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        self._check_usable()
        with self._failures():
            return await asyncio.get_running_loop().run_in_executor(thread, work)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what the engine raises into ``StoreError``: nothing more specific, and panics on damaged files."""
        try:
            with panics_as_errors():
                yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"experience bank {self._folder}: {error}") from error

    def _search(self, request: SearchRequest, vector: np.ndarray, params: edge.SearchParams) -> list[Hit]:
        query = edge.QueryRequest(
            limit=request.limit,
            query=edge.Query.Nearest(vector.tolist()),
            filter=_filter(request),
            params=params,
        )
        with self._failures():
            points = self._shard.query(query)
        return sorted((Hit(str(point.id), point.score) for point in points), key=lambda hit: (-hit.score, hit.id))

    async def _upsert(
        self, shard: edge.EdgeShard, entries: Sequence[Experience], vectors: np.ndarray, replaces: Sequence[str] = ()
    ) -> None:
        payloads = self.contents.payloads(entries, replaces)
        vectors = np.asarray(vectors, dtype=np.float32)

        def write(start: int) -> None:
            rows = slice(start, start + _WRITE_BATCH)
            points = [
                edge.Point(id=entry.id, vector=vector.tolist(), payload=payload)
                for entry, vector, payload in zip(entries[rows], vectors[rows], payloads[rows], strict=True)
            ]
            shard.update(edge.UpdateOperation.upsert_points(points))

        for start in range(0, len(entries), _WRITE_BATCH):
            await self._write(lambda start=start: write(start))

    # The methods below are called in a worker thread.

    def _shard_path(self, number: int) -> Path:
        return self._folder / f"shard-{number}"

    def _own_shard(self, number: Any) -> int:
        """Return the number of the live shard, after checking that its folder is in this one, and all it holds.

        The file may be somebody else's, and what it names is opened, written and, after a crash, removed.
        """
        if type(number) is not int or number < 0 or self._shard_path(number).is_symlink():
            raise StoreError(f"experience bank {self._folder} cannot be used: bank.json names no shard of this folder")
        for path in self._shard_path(number).rglob("*"):
            if path.is_symlink():
                raise StoreError(f"experience bank {self._folder} cannot be used: {path} is a link")
        return number

    def _open_shard(self) -> None:
        identity = self._folder / IDENTITY
        if identity.exists():
            stored = json.loads(identity.read_text(encoding="utf-8"))
            self.embedding = verified_embedding(f"experience bank {self._folder}", stored, self._wanted)
            self.dimension = self.embedding["dimension"]
            self._shard_number = self._own_shard(stored.get("shard"))
            if stored.get("creating"):  # a crash in the first opening
                shutil.rmtree(self._shard_path(self._shard_number), ignore_errors=True)
                self._create_shard(self._shard_number, self.dimension).close()
                self._write_identity(self._shard_number, self.embedding)
            self._shard = edge.EdgeShard.load(str(self._shard_path(self._shard_number)))
            _ensure_indexes(self._shard)
            if stored["schema_version"] != SCHEMA_VERSION:  # its entries are read, and rewritten when they change
                self._write_identity(self._shard_number, self.embedding)
        elif self._wanted is not None:
            self.embedding = as_json(self._wanted)
            self.dimension = self.embedding["dimension"]
            # The file says whose folder this is before anything else is written, and that the shard is not complete.
            check_adoptable(self._folder)
            self._write_identity(0, self.embedding, creating=True)
            self._shard = self._create_shard(0, self.dimension)
            self._write_identity(0, self.embedding)
        for path in self._folder.glob("shard-*"):
            number = path.name.removeprefix("shard-")
            if number.isdecimal() and int(number) != self._shard_number:  # left behind by a crash in a replacement
                shutil.rmtree(path)

    def _write_identity(self, number: int, embedding: dict[str, Any], *, creating: bool = False) -> None:
        identity = {"schema_version": SCHEMA_VERSION, "embedding": embedding, "shard": number}
        identity |= {"creating": True} if creating else {}
        write_atomically(self._folder / IDENTITY, json.dumps(identity, indent=1).encode())

    def _create_shard(self, number: int, dimension: int) -> edge.EdgeShard:
        vectors = edge.EdgeVectorParams(
            size=dimension,
            distance=edge.Distance.Dot,
            quantization_config=edge.TurboQuantQuantizationConfig(bits=edge.TurboQuantBitSize.Bits4),
        )
        # One thread: the shard has one segment, and handing a search to a second thread costs more than it saves.
        config = edge.EdgeConfig(vectors=vectors, max_search_threads=1)
        shard = edge.EdgeShard.create(str(self._shard_path(number)), config)
        _ensure_indexes(shard)
        return shard

    def _abandon(self, number: int, shard: edge.EdgeShard) -> None:
        """Undo a replacement that has failed."""
        if json.loads((self._folder / IDENTITY).read_text(encoding="utf-8"))["shard"] == number:
            self._write_identity(self._shard_number, self.embedding)  # it was written, but is perhaps not durable
        self._discard(number, shard)

    def _discard(self, number: int, shard: edge.EdgeShard) -> None:
        shard.close()
        shutil.rmtree(self._shard_path(number), ignore_errors=True)

    def _close_shard(self) -> None:
        try:
            check_room(self._folder)
            self._shard.flush()
        finally:  # needs no room: what was not flushed is in the engine's log
            self._shard.close()


def _ensure_indexes(shard: edge.EdgeShard) -> None:
    for field in KEYWORD_FIELDS:
        shard.update(edge.UpdateOperation.create_field_index(field, edge.PayloadSchemaType.Keyword))


def _vectors(records: Sequence[edge.Record]) -> dict[str, np.ndarray]:
    return {str(record.id): np.asarray(record.vector, dtype=np.float32) for record in records}


def _filter(request: SearchRequest) -> edge.Filter | None:
    scope = {"task": request.task, "environment": request.environment}
    must = [
        edge.FieldCondition(field, match=edge.MatchValue(value)) for field, value in scope.items() if value is not None
    ]
    must_not: list[Any] = [edge.HasIdCondition(set(request.exclude))] if request.exclude else []
    if not request.quarantined:
        must_not.append(edge.FieldCondition("state", match=edge.MatchValue(QUARANTINED)))
    return edge.Filter(must=list(must), must_not=must_not) if must or must_not else None
