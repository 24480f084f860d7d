"""The Qdrant collection of a bank: alias, metadata, indexes and replacement. The writer's lease is in ``server_lease``.

Owns the collection as a whole; entries and searches are in ``server``.

A bank's name is an alias of the collection ``<name>.v<n>``. A server can neither exchange the whole content of a
collection in one step nor change the size of its vectors. A replacement therefore fills the next collection completely
and then moves the alias to it.
"""

import asyncio
import contextlib
import re
import time
from itertools import count
from typing import Any

from qdrant_client import models

from verl_comprl.experience.schema import SCHEMA_VERSION
from verl_comprl.experience.store.errors import StoreError
from verl_comprl.experience.store.payload import KEYWORD_FIELDS
from verl_comprl.experience.store.server_client import ServerClient, status_of

_READABLE_SECONDS = 5.0
"""Seconds for which a collection that another process has just created may be unreadable."""


class ServerCollection:
    """The collection behind an alias, named ``physical``."""

    def __init__(self, client: ServerClient, name: str) -> None:
        """Use the alias ``name``; ``find`` or ``create`` sets the collection behind it."""
        self._client = client
        self._alias = name
        self.physical = ""
        self.limits = models.StrictModeConfigOutput()
        """Sizes of requests that the server accepts; None for any."""
        self._settled = True

    async def find(self) -> dict[str, Any] | None:
        """Return the metadata of the collection behind the alias, or None if there is no such alias.

        Raises:
            StoreError: If the name is a collection instead of an alias, or the server failed.
        """
        found = await self._aliased()
        if found is None:
            if await self._client.call(lambda client: client.collection_exists(self._alias)):
                raise StoreError(f"{self._client.name} is a collection, not an experience bank; choose another name")
            return None
        self.physical = found
        return await self._metadata()

    async def create(self, embedding: dict[str, Any]) -> dict[str, Any]:
        """Create the first collection and the alias, or use the collection that another process is just creating.

        Returns:
            The metadata of the collection, which may be another process's.

        Raises:
            StoreError: If the server holds later collections of the bank, or the server failed.
        """
        banks = await self._aliases()  # one of them may be named like the first collection
        first = next(number for number in count(1) if f"{self._alias}.v{number}" not in banks)
        if later := [name for number, name in await self._numbered() if number > first]:
            raise StoreError(
                f"{self._client.name} has lost its alias, but its content is there: point the alias {self._alias} "
                f"to {later[-1]} on the server, or choose another comprl.bank.collection"
            )
        self.physical = f"{self._alias}.v{first}"
        try:
            await self._create(self.physical, embedding)
        except StoreError as error:
            if status_of(error) != 409:
                raise
        await self.ensure_indexes()
        await self.point_to(self.physical)
        return await self._metadata()

    async def create_next(self, embedding: dict[str, Any]) -> str:
        """Create the next collection, under a number that no collection has, and no bank named ``<name>.v<n>``.

        Nor does the one in use have it, if that has vanished: searches must not find a collection that is being filled.
        """
        numbers = [number for number, _ in await self._numbered()]
        numbers += [self._number(name) for name in await self._aliases()]
        name = f"{self._alias}.v{max([self._number(self.physical), *numbers]) + 1}"
        await self._create(name, embedding)
        await self._ensure_indexes(name)
        return name

    async def point_to(self, name: str) -> None:
        """Point the alias to a collection."""
        # The alias decides which content counts: a crash before this call leaves the old content, a crash after it the
        # new one, and in both cases a collection that nothing refers to. One action, which replaces an alias: harmless
        # to repeat, and read back in case the last answer was lost.
        create: Any = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=name, alias_name=self._alias)
        )
        self._settled = False
        try:
            await self._client.call(lambda client: client.update_collection_aliases([create]))
        except StoreError:
            if await self._aliased() != name:
                raise
        self._settled = True

    async def check(self) -> None:
        """Check that the collection in use is there.

        Raises:
            StoreVanished: If it is not.
        """
        await self._readable(self.physical, wait=False)

    async def settle(self) -> None:
        """Point the alias back to the collection in use, if a call that failed may have moved it."""
        if not self._settled:
            await self.point_to(self.physical)

    async def clear_away(self) -> None:
        """Delete the collections that replacements left behind; what cannot be deleted now is deleted at an opening."""
        with contextlib.suppress(StoreError):
            for _, name in await self._numbered():
                if name != self.physical and "embedding" in await self._metadata(name):  # made by a bank
                    await self.drop(name)

    async def drop(self, name: str) -> None:
        """Delete a collection that is not in use."""
        await self._client.call(lambda client: client.delete_collection(name))

    async def ensure_indexes(self) -> None:
        """Create the payload indexes that are missing; filters are slow, or refused, without them."""
        await self._ensure_indexes(self.physical)

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
        for field, schema in wanted.items():
            # Of another type a server would answer queries without it; creating it again replaces it.
            if field not in there or (there[field] and there[field].data_type != schema.type.value):
                await self._client.call(
                    lambda client, field=field, schema=schema: client.create_payload_index(name, field, schema)
                )
        there = (await self._readable(name)).payload_schema
        if missing := [field for field in wanted if field not in there]:
            raise StoreError(f"{self._client.name} has no index on {', '.join(missing)}")

    async def _readable(self, name: str, *, wait: bool = True) -> models.CollectionInfo:
        deadline = time.monotonic() + _READABLE_SECONDS * wait
        while True:
            try:
                return await self._client.call(lambda client: client.get_collection(name))
            except StoreError as error:
                if status_of(error) != 404 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _metadata(self, name: str = "") -> dict[str, Any]:
        config = (await self._readable(name or self.physical, wait=not name)).config
        if not name and config.strict_mode_config and config.strict_mode_config.enabled:
            self.limits = config.strict_mode_config
        return config.metadata or {}

    async def record_schema(self) -> None:
        """Record the schema of this release, after which an older one refuses the bank."""
        version = {"schema_version": SCHEMA_VERSION}
        await self._client.call(lambda client: client.update_collection(self.physical, metadata=version))

    async def _numbered(self) -> list[tuple[int, str]]:
        """Return the collections named ``<name>.v<n>``, by number."""
        there = (await self._client.call(lambda client: client.get_collections())).collections
        names = [collection.name for collection in there]
        return sorted((number, name) for name in names if (number := self._number(name)))

    def _number(self, name: str) -> int:
        """Return ``n`` of the name of a collection ``<name>.v<n>``, 0 of another one."""
        match = re.fullmatch(rf"{re.escape(self._alias)}\.v(\d{{1,9}})", name)
        return int(match[1]) if match else 0

    async def _aliased(self) -> str | None:
        return (await self._aliases()).get(self._alias)

    async def _aliases(self) -> dict[str, str]:
        """Return the collection of each alias on the server."""
        aliases = (await self._client.call(lambda client: client.get_aliases())).aliases
        return {alias.alias_name: alias.collection_name for alias in aliases}
