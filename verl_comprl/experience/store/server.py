"""Experience store on a Qdrant server, over REST.

Owns entries and searches. How calls are made is in ``server_client``, the collection and its writer in
``server_collection``.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
from qdrant_client import AsyncQdrantClient, models

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.base import ExperienceStore, Hit, SearchRequest, check_vectors, stack_rows
from verl_comprl.experience.store.errors import StoreError, StoreUnavailable, StoreVanished
from verl_comprl.experience.store.payload import (
    QUARANTINED,
    Contents,
    as_json,
    point_id,
    to_payload,
    verified_embedding,
)
from verl_comprl.experience.store.server_client import ServerClient, status_of
from verl_comprl.experience.store.server_collection import ServerCollection
from verl_comprl.experience.store.server_lease import RENEW_SECONDS, Lease

_WRITE_BATCH = 64
_READ_BATCH = 256
_REQUEST_BYTES = 8 * 2**20
"""Of payloads and vectors in an upsert, roughly: at 32 MB a server closes the connection without an answer."""

T = TypeVar("T")


class ServerStore(ExperienceStore):
    """A collection on a server, with one writer, which holds a lease, and any number of readers."""

    def __init__(self, client: ServerClient, collection: ServerCollection, lease: Lease, *, read_only: bool) -> None:
        """Use ``open``."""
        self.contents = Contents()
        self.shared = read_only
        self._lease = lease
        self._renewal: asyncio.Task[None] | None = None
        self._client = client
        self._collection = collection
        self._read_only = read_only

    @classmethod
    async def open(
        cls,
        config: BankConfig,
        *,
        embedding: dict[str, Any] | None,
        read_only: bool = False,
        client: AsyncQdrantClient | None = None,
    ) -> Self:
        """Open the bank ``config.collection`` on ``config.url``, or create it.

        Args:
            config: Where the bank is. The API key is taken from the environment variable ``QDRANT_API_KEY``.
            embedding: Identity of the embedder, with its ``dimension``; stored at creation, compared at every later
                opening. None opens an existing bank with the identity it has.
            read_only: Create nothing, do not become the writer, refuse to write.
            client: Used instead of a client of ``config.url``.

        Raises:
            StoreError: If the server cannot be reached, another process writes the bank, it was built with another
                embedder or schema, or it does not exist and must not be created.
        """
        connection = ServerClient(config, client)
        store = cls(
            connection,
            ServerCollection(connection, config.collection),
            Lease(connection, config.collection),
            read_only=read_only,
        )
        try:
            await store._open(embedding)
        except BaseException:
            with contextlib.suppress(StoreError):
                await store._stop_writing()
            await connection.close()
            raise
        return store

    async def _open(self, wanted: dict[str, Any] | None) -> None:
        metadata = await self._collection.find()
        if metadata is None:
            if wanted is None or self._read_only:
                raise StoreError(f"{self._client.name} does not exist")
            metadata = await self._collection.create(as_json(wanted))
        self.embedding = verified_embedding(self._client.name, metadata, wanted)
        self.dimension = self.embedding["dimension"]
        if not self._read_only:
            await self._lease.take()
            self._renewal = asyncio.create_task(self._keep_lease())
            await self._collection.record_schema()
            await self._collection.ensure_indexes()
            await self._collection.clear_away()

    async def load(self) -> list[Experience]:
        contents = Contents()
        offset: Any = None
        limit = min(_READ_BATCH, self._limits.max_query_limit or _READ_BATCH)
        begun: set[Any] = set()
        while True:
            records, offset = await self._client.call(
                lambda client, offset=offset: client.scroll(self._name, limit=limit, offset=offset)
            )
            for record in records:
                contents.add(record.id, record.payload)
            if offset is None:
                self.contents = contents
                return contents.entries
            if offset in begun:
                raise StoreError(f"{self._client.name}: the server lists the same entries again and again")
            begun.add(offset)

    async def fetch(self, ids: Sequence[str]) -> list[Experience]:
        contents = Contents()
        for start in range(0, len(ids), _READ_BATCH):
            batch = list(ids[start : start + _READ_BATCH])
            for record in await self._located(lambda client, batch=batch: client.retrieve(self._name, batch)):
                contents.add(record.id, record.payload)
        return contents.entries

    async def count(self) -> int:
        return (await self._client.call(lambda client: client.count(self._name, exact=True))).count

    async def search(self, requests: Sequence[SearchRequest]) -> list[list[Hit]]:
        if not requests:
            return []
        vectors = check_vectors(
            np.stack([request.vector for request in requests]), count=len(requests), dimension=self.dimension
        )
        # Where a condition may not name that many ids, as many more hits are asked for, and left out here.
        most = self._limits.condition_max_size
        extra = [len(r.exclude) if most is not None and len(r.exclude) > most else 0 for r in requests]
        queries = [
            models.QueryRequest(
                query=vector.tolist(),
                limit=min(request.limit + more, self._limits.max_query_limit or request.limit + more),
                filter=_filter(replace(request, exclude=frozenset()) if more else request),
                # At the same cost as with the server's index up to some 100,000 entries, which would miss some.
                params=models.SearchParams(exact=self._limits.search_allow_exact is not False),
                with_payload=False,
            )
            for request, vector, more in zip(requests, vectors, extra, strict=True)
        ]
        size = self._limits.search_max_batchsize or len(queries)
        responses = [
            response
            for start in range(0, len(queries), size)
            for response in await self._located(
                lambda client, start=start: client.query_batch_points(
                    self._name, queries[start : start + size], timeout=self._client.whole_seconds
                )
            )
        ]
        if len(responses) != len(requests):
            raise StoreError(f"{self._client.name}: {len(responses)} answers to {len(requests)} searches")
        return [
            sorted(
                (
                    Hit(str(p.id), p.score)
                    for p in response.points
                    if str(p.id) not in request.exclude and math.isfinite(p.score)
                ),
                key=lambda hit: (-hit.score, hit.id),
            )[: request.limit]
            for request, response in zip(requests, responses, strict=True)
        ]

    async def upsert(self, entries: Sequence[Experience], vectors: np.ndarray, replaces: Sequence[str] = ()) -> None:
        vectors = check_vectors(vectors, count=len(entries), dimension=self.dimension)
        await self._start_writing()
        await self._upsert(self._name, entries, vectors, replaces)

    async def update(self, entries: Sequence[Experience]) -> None:
        await self._start_writing()
        for start in range(0, len(entries), _WRITE_BATCH):
            operations: list[Any] = [
                models.SetPayloadOperation(
                    # By filter, not by id: for an id that is not there a server answers 404.
                    set_payload=models.SetPayload(
                        payload=to_payload(entry),
                        filter=models.Filter(must=[models.HasIdCondition(has_id=[entry.id])]),
                    )
                )
                for entry in entries[start : start + _WRITE_BATCH]
            ]
            results = await self._client.call(
                lambda client, operations=operations: client.batch_update_points(
                    self._name, operations, wait=True, timeout=self._client.whole_seconds
                )
            )
            for result in results:
                self._check(result)

    async def delete(self, ids: Sequence[str]) -> None:
        await self._start_writing()
        if ids:
            self._check(
                await self._client.call(
                    lambda client: client.delete(
                        self._name,
                        models.PointIdsList(points=[*map(point_id, ids)]),
                        wait=True,
                        timeout=self._client.whole_seconds,
                    )
                )
            )

    async def vectors(self, ids: Sequence[str]) -> np.ndarray:
        found: dict[str, Any] = {}
        for start in range(0, len(ids), _READ_BATCH):
            batch = list(ids[start : start + _READ_BATCH])
            records = await self._client.call(
                lambda client, batch=batch: client.retrieve(self._name, batch, with_payload=False, with_vectors=True)
            )
            found.update((str(record.id), record.vector) for record in records)
        return stack_rows(ids, found, self.dimension)

    async def replace_all(
        self,
        entries: Sequence[Experience],
        vectors: np.ndarray,
        embedding: dict[str, Any] | None = None,
        *,
        switching: contextlib.AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        identity = self.embedding if embedding is None else as_json(embedding)
        vectors = check_vectors(vectors, count=len(entries), dimension=identity["dimension"])
        await self._lease.regain()
        await self._renew()  # and no more: the alias is not put back, and the collection in use may have vanished
        name = await self._collection.create_next(identity)
        try:
            await self._upsert(name, entries, vectors)
            # Counted before the switch: an incomplete copy must not replace the old content.
            written = (await self._client.call(lambda client: client.count(name, exact=True))).count
            if written != len(entries):
                raise StoreError(f"{self._client.name}: {written} of {len(entries)} entries arrived in {name}")
            await self._lease.confirm()  # this process may have been suspended for longer than its lease
        except BaseException:
            with contextlib.suppress(StoreError):  # the next replacement deletes what cannot be deleted now
                await self._lease.confirm()  # or a successor has a collection of this name
                await self._collection.drop(name)
            raise
        await self._collection.point_to(name)
        async with switching or contextlib.nullcontext():
            self._collection.physical = name
            self.embedding, self.dimension = identity, identity["dimension"]
        with contextlib.suppress(StoreError):  # the replacement is made; the next write says who is the writer now
            await self._lease.confirm()  # or the collection of a successor would be deleted
            await self._collection.clear_away()

    async def flush(self) -> None:
        # The server itself makes every acknowledged write durable, unless it was started without its storage.
        await self._start_writing()
        await self._lease.confirm()  # whenever that was done last: another process may have made a bank of this name
        await self._collection.check()

    async def close(self) -> None:
        if self._client.closed:
            return
        try:
            await self._stop_writing()
        finally:
            await self._client.close()

    @property
    def _name(self) -> str:
        return self._collection.physical

    @property
    def _limits(self) -> models.StrictModeConfigOutput:
        return self._collection.limits

    async def _located(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Search or fetch, for which a writer may wait. A reader follows a bank put into another collection."""
        try:
            return await self._client.call_briefly(work)
        except StoreError as error:
            if status_of(error) != 404:
                raise
        metadata = await self._collection.find()
        if metadata is None:
            raise StoreVanished(f"the bank has vanished from the server: {self._client.name}")
        stored = verified_embedding(self._client.name, metadata, None)
        if stored != self.embedding:
            raise StoreError(f"{self._client.name} was embedded again by another process; open it again")
        return await self._client.call_briefly(work)

    async def _keep_lease(self) -> None:
        """Renew the lease, whatever the bank does meanwhile; a failure is noticed by the next write."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreError):
                await self._lease.renew()

    async def _stop_writing(self) -> None:
        """Give the lease back, so that another process can open the bank at once."""
        if self._renewal:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])  # or it could take the lease again
            await self._lease.release()

    async def _upsert(
        self, name: str, entries: Sequence[Experience], vectors: np.ndarray, replaces: Sequence[str] = ()
    ) -> None:
        payloads = self.contents.payloads(entries, replaces)
        for batch in self._batches(payloads):
            points = [
                models.PointStruct(id=entries[row].id, vector=vectors[row].tolist(), payload=payloads[row])
                for row in batch
            ]
            await self._renew()
            self._check(
                await self._client.call(
                    lambda client, points=points: client.upsert(
                        name, points, wait=True, timeout=self._client.whole_seconds
                    )
                )
            )

    def _batches(self, payloads: Sequence[dict[str, Any]]) -> Iterator[list[int]]:
        """Split rows into requests that the server accepts."""
        most = min(_WRITE_BATCH, self._limits.upsert_max_batchsize or _WRITE_BATCH)
        batch: list[int] = []
        size = 0
        for row, payload in enumerate(payloads):
            needed = 4 * len(payload["entry"]) + 20 * self.dimension
            if batch and (len(batch) == most or size + needed > _REQUEST_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += needed
        if batch:
            yield batch

    async def _start_writing(self) -> None:
        await self._renew()
        await self._collection.settle()

    async def _renew(self) -> None:
        if self._read_only:
            raise StoreError(f"{self._client.name} was opened read-only")
        await self._lease.renew()

    def _check(self, result: models.UpdateResult) -> None:
        if result.status != models.UpdateStatus.COMPLETED:
            raise StoreUnavailable(f"{self._client.name}: a write is {result.status.value}, not completed")


def _filter(request: SearchRequest) -> models.Filter | None:
    scope = {"task": request.task, "environment": request.environment}
    must: list[Any] = [
        models.FieldCondition(key=field, match=models.MatchValue(value=value))
        for field, value in scope.items()
        if value is not None
    ]
    must_not: list[Any] = [models.HasIdCondition(has_id=list(request.exclude))] if request.exclude else []
    if not request.quarantined:
        hidden = models.FieldCondition(key="state", match=models.MatchValue(value=QUARANTINED))
        must_not.append(hidden)
    return models.Filter(must=must, must_not=must_not) if must or must_not else None
