"""The experience store on Qdrant's embedded engine: one folder, one process, no server.

Owns the folder, its identity file and every call into the engine. The engine holds the GIL in updates and flushes, so
calls are small and run in one worker thread. Nothing is said here about which entry is best: see ``retrieval``.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import numpy as np
import qdrant_edge as edge
from pydantic import ValidationError

from verl_comprl.experience.embedding import embedding_difference
from verl_comprl.experience.folder import FolderLock, write_atomically
from verl_comprl.experience.schema import SCHEMA_VERSION, Experience
from verl_comprl.experience.store import ExperienceStore, SearchRequest, StoreError, check_vectors

T = TypeVar("T")

_WRITE_BATCH = 32
_READ_BATCH = 256


class QdrantStore(ExperienceStore):
    """Embedded Qdrant. Layout of the folder: ``lock``, ``bank.json`` (identity, name of the live shard), ``shard-<n>``.

    Vectors are compared by dot product: they arrive normalised, and unlike with cosine the engine keeps every bit.
    """

    def __init__(self, folder: Path, embedding: dict[str, Any], dimension: int) -> None:
        """Use ``open``; this takes the folder but opens no shard yet."""
        self._folder = folder
        self._embedding = embedding
        self._dimension = dimension
        self._lock = FolderLock(folder)
        self._pid = os.getpid()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experience-store")
        self._closed = False
        self._shard: edge.EdgeShard
        self._shard_number = 0

    @classmethod
    async def open(cls, path: str | Path, *, embedding: dict[str, Any], dimension: int) -> Self:
        """Open the bank folder ``path``, or create it.

        Args:
            path: Folder; taken exclusively until ``close``.
            embedding: Identity of the embedder; stored at creation, compared at every later opening.
            dimension: Length of the vectors.

        Raises:
            StoreError: If the folder is in use, was built with another embedder or schema, or cannot be read.
        """
        # Through JSON and back, so that what is compared is what can be stored.
        store = cls(Path(path), json.loads(json.dumps(embedding)), dimension)
        try:
            await store._call(store._open_shard)
        except BaseException:
            store._release()
            raise
        return store

    async def load(self) -> list[Experience]:  # noqa: D102
        entries: list[Experience] = []
        offset = None
        while True:
            request = edge.ScrollRequest(offset=offset, limit=_READ_BATCH, with_payload=True)
            records, offset = await self._call(lambda request=request: self._shard.scroll(request))
            entries.extend(_entry(record) for record in records)
            if offset is None:
                return entries

    async def search(self, requests: Sequence[SearchRequest]) -> list[list[str]]:  # noqa: D102
        if not requests:
            return []
        vectors = check_vectors(
            np.stack([request.vector for request in requests]), count=len(requests), dimension=self._dimension
        )
        queries = [_query(request, vector) for request, vector in zip(requests, vectors, strict=True)]
        # One by one: unlike a batch, a single query lets go of the GIL, and the event loop runs on.
        return await self._call(lambda: [_ranked(self._shard.query(query)) for query in queries])

    async def upsert(self, entries: Sequence[Experience], vectors: np.ndarray) -> None:  # noqa: D102
        await self._upsert(self._shard, entries, vectors)

    async def update(self, entries: Sequence[Experience]) -> None:  # noqa: D102
        def write(batch: Sequence[Experience]) -> None:
            for entry in batch:
                self._shard.update(edge.UpdateOperation.set_payload([entry.id], _payload(entry)))

        for start in range(0, len(entries), _WRITE_BATCH):
            await self._call(lambda start=start: write(entries[start : start + _WRITE_BATCH]))

    async def delete(self, ids: Sequence[str]) -> None:  # noqa: D102
        for start in range(0, len(ids), _WRITE_BATCH):
            operation = edge.UpdateOperation.delete_points(list(ids[start : start + _WRITE_BATCH]))
            await self._call(lambda operation=operation: self._shard.update(operation))

    async def vectors(self, ids: Sequence[str]) -> np.ndarray:  # noqa: D102
        found: dict[str, np.ndarray] = {}
        for start in range(0, len(ids), _READ_BATCH):
            batch: list[int | UUID | str] = list(ids[start : start + _READ_BATCH])
            found.update(await self._call(lambda batch=batch: _vectors(self._shard.retrieve(batch, False, True))))
        missing = [id for id in ids if id not in found]
        if missing:
            raise StoreError(f"{len(missing)} of {len(ids)} entries have no vector in the store, first {missing[0]}")
        return np.array([found[id] for id in ids], dtype=np.float32).reshape(len(ids), self._dimension)

    async def replace_all(self, entries: Sequence[Experience], vectors: np.ndarray) -> None:  # noqa: D102
        number = self._shard_number + 1
        fresh = await self._call(lambda: self._create_shard(number))
        try:
            await self._upsert(fresh, entries, vectors)
            await self._call(fresh.flush)
        except BaseException:
            await self._call(fresh.close)
            shutil.rmtree(self._shard_path(number), ignore_errors=True)
            raise
        await self._call(lambda: self._switch(number, fresh))

    async def flush(self) -> None:  # noqa: D102
        await self._call(self._shard.flush)

    async def close(self) -> None:  # noqa: D102
        if self._closed:
            return
        try:
            await self._call(self._close_shard)
        finally:
            self._release()

    def _release(self) -> None:
        self._closed = True
        self._executor.shutdown(wait=False)
        self._lock.release()

    async def _call(self, work: Callable[[], T]) -> T:
        if os.getpid() != self._pid:
            raise StoreError(f"experience bank {self._folder} was opened in process {self._pid}, this is a fork of it")
        if self._closed:
            raise StoreError(f"experience bank {self._folder} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except (StoreError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise StoreError(f"experience bank {self._folder}: {error}") from error

    async def _upsert(self, shard: edge.EdgeShard, entries: Sequence[Experience], vectors: np.ndarray) -> None:
        vectors = check_vectors(vectors, count=len(entries), dimension=self._dimension)

        def write(start: int) -> None:
            batch = zip(entries[start : start + _WRITE_BATCH], vectors[start : start + _WRITE_BATCH], strict=True)
            points = [
                edge.Point(id=entry.id, vector=vector.tolist(), payload=_payload(entry)) for entry, vector in batch
            ]
            shard.update(edge.UpdateOperation.upsert_points(points))

        for start in range(0, len(entries), _WRITE_BATCH):
            await self._call(lambda start=start: write(start))

    # Everything below runs in the worker thread.

    def _shard_path(self, number: int) -> Path:
        return self._folder / f"shard-{number}"

    def _open_shard(self) -> None:
        identity = self._folder / "bank.json"
        if identity.exists():
            stored = json.loads(identity.read_text(encoding="utf-8"))
            self._verify(stored)
            self._shard_number = stored["shard"]
            self._shard = edge.EdgeShard.load(str(self._shard_path(self._shard_number)))
        else:
            shutil.rmtree(self._shard_path(0), ignore_errors=True)
            self._shard = self._create_shard(0)
            self._write_identity(0)
        for path in self._folder.glob("shard-*"):
            if path != self._shard_path(self._shard_number):  # left behind by a crash in a replacement
                shutil.rmtree(path)

    def _verify(self, stored: dict[str, Any]) -> None:
        if stored["schema_version"] != SCHEMA_VERSION:
            raise StoreError(
                f"experience bank {self._folder} has schema version {stored['schema_version']}, "
                f"this release reads {SCHEMA_VERSION}"
            )
        if (difference := embedding_difference(stored["embedding"], self._embedding)) is not None:
            raise StoreError(
                f"experience bank {self._folder} was built with another embedder: {difference}; "
                "use that embedder or choose another comprl.bank.path"
            )

    def _write_identity(self, number: int) -> None:
        identity = {"schema_version": SCHEMA_VERSION, "embedding": self._embedding, "shard": number}
        write_atomically(self._folder / "bank.json", json.dumps(identity, indent=1).encode())

    def _create_shard(self, number: int) -> edge.EdgeShard:
        vectors = edge.EdgeVectorParams(size=self._dimension, distance=edge.Distance.Dot)
        shard = edge.EdgeShard.create(str(self._shard_path(number)), edge.EdgeConfig(vectors=vectors))
        for field in ("task", "environment"):
            shard.update(edge.UpdateOperation.create_field_index(field, edge.PayloadSchemaType.Keyword))
        return shard

    def _switch(self, number: int, fresh: edge.EdgeShard) -> None:
        self._write_identity(number)
        old, old_number = self._shard, self._shard_number
        self._shard, self._shard_number = fresh, number
        old.close()
        shutil.rmtree(self._shard_path(old_number))

    def _close_shard(self) -> None:
        self._shard.flush()
        self._shard.close()


def _payload(entry: Experience) -> dict[str, Any]:
    # The entry as one JSON string: as separate fields the engine rounds the last bit of times.
    return {"task": entry.task, "environment": entry.environment, "entry": entry.model_dump_json()}


def _entry(record: edge.Record) -> Experience:
    try:
        return Experience.model_validate_json((record.payload or {})["entry"])
    except (KeyError, ValidationError) as error:
        raise StoreError(f"entry {record.id} in the store cannot be read: {error}") from error


def _vectors(records: Sequence[edge.Record]) -> dict[str, np.ndarray]:
    return {str(record.id): np.asarray(record.vector, dtype=np.float32) for record in records}


def _query(request: SearchRequest, vector: np.ndarray) -> edge.QueryRequest:
    scope = {"task": request.task, "environment": request.environment}
    must = [
        edge.FieldCondition(field, match=edge.MatchValue(value)) for field, value in scope.items() if value is not None
    ]
    must_not = [edge.HasIdCondition(set(request.exclude))] if request.exclude else []
    return edge.QueryRequest(
        limit=request.limit,
        query=edge.Query.Nearest(vector.tolist()),
        filter=edge.Filter(must=list(must), must_not=list(must_not)) if must or must_not else None,
    )


def _ranked(points: Sequence[edge.ScoredPoint]) -> list[str]:
    return [str(point.id) for point in sorted(points, key=lambda point: (-point.score, str(point.id)))]
