"""The Qdrant collection of a bank: alias, metadata, indexes, replacement, and the lease of its writer.

Owns the collection as a whole; entries and searches are in ``server``.

A bank's name is an alias of the collection ``<name>.v<n>``. A server can neither exchange the whole content of a
collection in one step nor change the size of its vectors. A replacement therefore fills the next collection completely
and then moves the alias to it.
"""

import asyncio
import os
import socket
import time
import uuid
from typing import Any

from qdrant_client import models

from verl_comprl.experience.schema import SCHEMA_VERSION
from verl_comprl.experience.store.base import StoreError
from verl_comprl.experience.store.payload import INTEGER_FIELDS, KEYWORD_FIELDS
from verl_comprl.experience.store.server_client import ServerClient, status_of

LEASE_SECONDS = 30.0
"""Seconds since its last renewal for which a writer counts as alive."""
_RENEW_SECONDS = 10.0
_READABLE_SECONDS = 5.0
"""Seconds for which a collection that another process has just created may be unreadable."""
_WRITER = "writer"


class ServerCollection:
    """The collection behind an alias, named ``physical``."""

    def __init__(self, client: ServerClient, name: str) -> None:
        """Use the alias ``name``; ``find`` or ``create`` sets the collection behind it."""
        self._client = client
        self._alias = name
        self.physical = ""
        self._id = uuid.uuid4().hex
        self._renewed_at = 0.0

    async def find(self) -> dict[str, Any] | None:
        """Return the metadata of the collection behind the alias, or None if there is no such alias.

        Raises:
            StoreError: If the name is a collection instead of an alias, or the server failed.
        """
        aliases = (await self._client.call(lambda client: client.get_aliases())).aliases
        found = [alias.collection_name for alias in aliases if alias.alias_name == self._alias]
        if not found:
            if await self._client.call(lambda client: client.collection_exists(self._alias)):
                raise StoreError(f"{self._client.name} is a collection, not an experience bank; choose another name")
            return None
        (self.physical,) = found
        return await self._metadata()

    async def create(self, embedding: dict[str, Any]) -> dict[str, Any]:
        """Create the first collection and the alias, or use the collection that another process is just creating.

        Returns:
            The metadata of the collection, which may be another process's.
        """
        self.physical = f"{self._alias}.v1"
        try:
            await self._create(self.physical, embedding)
        except StoreError as error:
            if status_of(error) != 409:
                raise
        await self.ensure_indexes()
        await self._point_alias(self.physical, None)
        return await self._metadata()

    async def create_next(self, embedding: dict[str, Any]) -> str:
        """Create the next collection, after deleting what a crash may have left under its name."""
        number = int(self.physical.rpartition(".v")[2]) + 1
        name = f"{self._alias}.v{number}"
        await self._client.call(lambda client: client.delete_collection(name))
        await self._create(name, embedding)
        await self._ensure_indexes(name)
        return name

    async def switch_to(self, name: str) -> None:
        """Point the alias to another collection and delete the previous one."""
        old = self.physical
        # The alias decides which content counts: a crash before this call leaves the old content, a crash after it the
        # new one, and in both cases a collection that nothing refers to.
        await self._point_alias(name, old)
        self.physical = name
        # The lease is in the metadata of the collection, so the new one has none yet.
        self._renewed_at = 0.0
        await self.renew_lease()
        await self._client.call(lambda client: client.delete_collection(old))

    async def drop(self, name: str) -> None:
        """Delete a collection that is not in use."""
        await self._client.call(lambda client: client.delete_collection(name))

    async def ensure_indexes(self) -> None:
        """Create the payload indexes that are missing; filters are slow, or refused, without them."""
        await self._ensure_indexes(self.physical)

    # ---- the lease of the writer ----

    async def take_lease(self, metadata: dict[str, Any]) -> None:
        """Become the writer, unless ``metadata`` names another one that counts as alive.

        The lease is read and then written, not in one step: it does not stop processes that open at the same moment.

        Raises:
            StoreError: If there is another writer.
        """
        self.check_lease(metadata)
        await self.renew_lease()

    def check_lease(self, metadata: dict[str, Any]) -> None:
        """Check that ``metadata`` names no other writer that counts as alive.

        Raises:
            StoreError: If it does.
        """
        writer = metadata.get(_WRITER) or {}
        seen = time.time() - writer.get("seen_at", 0.0)
        if writer.get("id") not in (None, self._id) and seen < LEASE_SECONDS and not _is_dead(writer):
            raise StoreError(
                f"{self._client.name} is being written by process {writer.get('pid')} on {writer.get('host')} "
                f"(seen {seen:.0f} s ago); close that run, or choose another comprl.bank.collection. "
                f"If it died, it can be opened in {LEASE_SECONDS - seen:.0f} s"
            )

    async def renew_lease(self) -> None:
        """Record that the writer is alive, unless that was done less than ``_RENEW_SECONDS`` ago."""
        if time.monotonic() - self._renewed_at < _RENEW_SECONDS and self._renewed_at:
            return
        writer = {"id": self._id, "host": socket.gethostname(), "pid": os.getpid(), "seen_at": time.time()}
        await self._set_metadata({_WRITER: writer, "schema_version": SCHEMA_VERSION})  # it may have been older
        self._renewed_at = time.monotonic()

    async def release_lease(self) -> None:
        """Stop being the writer, so that another process can open the bank at once."""
        await self._set_metadata({_WRITER: {}})

    # ---- calls ----

    async def _create(self, name: str, embedding: dict[str, Any]) -> None:
        # Not retried: if the first attempt did reach the server, the second one would fail with 409.
        await self._client.call_once(
            lambda client: client.create_collection(
                name,
                vectors_config=models.VectorParams(size=embedding["dimension"], distance=models.Distance.DOT),
                metadata={"schema_version": SCHEMA_VERSION, "embedding": embedding},
            )
        )

    async def _ensure_indexes(self, name: str) -> None:
        there = (await self._readable(name)).payload_schema
        keyword = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD)
        wanted: dict[str, Any] = {
            field: keyword.model_copy(update={"is_tenant": True}) if field == "task" else keyword
            for field in KEYWORD_FIELDS
        }
        wanted |= {field: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER) for field in INTEGER_FIELDS}
        for field, schema in wanted.items():
            if field not in there:
                await self._client.call(
                    lambda client, field=field, schema=schema: client.create_payload_index(name, field, schema)
                )
        there = (await self._readable(name)).payload_schema
        if missing := [field for field in wanted if field not in there]:
            raise StoreError(f"{self._client.name} has no index on {', '.join(missing)}")

    async def _readable(self, name: str) -> models.CollectionInfo:
        deadline = time.monotonic() + _READABLE_SECONDS
        while True:
            try:
                return await self._client.call(lambda client: client.get_collection(name))
            except StoreError as error:
                if status_of(error) != 404 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _metadata(self) -> dict[str, Any]:
        return (await self._readable(self.physical)).config.metadata or {}

    async def _set_metadata(self, metadata: dict[str, Any]) -> None:
        await self._client.call(lambda client: client.update_collection(self.physical, metadata=metadata))

    async def _point_alias(self, new: str, old: str | None) -> None:
        create = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=new, alias_name=self._alias)
        )
        operations: list[Any] = [create]
        if old is not None:
            operations.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self._alias)))
        await self._client.call_once(lambda client: client.update_collection_aliases(operations))


def _is_dead(writer: dict[str, Any]) -> bool:
    """Return whether the writer was a process of this machine that has ended."""
    if writer.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(writer["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, KeyError, ValueError):
        pass
    return False
