"""A bank in memory as it was when it was copied, so that any number of servers and runs can use its folder.

Owns the copy and the search in it. The folder is locked only while it is read.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from verl_comprl.cli.bank.interface import SearchSource
from verl_comprl.cli.bank.source import opened, reading
from verl_comprl.experience import BankConfig, Embedder, Experience, StoreError
from verl_comprl.experience.embedding.base import embedding_difference
from verl_comprl.experience.store.payload import as_json
from verl_comprl.experience.transfer.snapshot import Snapshot, read_snapshot
from verl_comprl.folder_lock import FolderInUse

_WAIT_SECONDS = 30.0
"""How long a folder that is in use is waited for: servers that start together read it one after another."""
_RETRY_SECONDS = 0.1

LoadEmbedder = Callable[[dict[str, Any]], Awaitable[Embedder]]


class BankCopy(SearchSource):
    """The entries of a bank with their vectors."""

    def __init__(self, copy: Snapshot, embedder: Embedder) -> None:
        """Search in ``copy``, whose vectors ``embedder`` or one like it has made."""
        self._copy, self._embedder = copy, embedder

    async def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        return self._copy.entries

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        """Return the most similar entries with their similarities, best first; none for an empty text."""
        if not query or not self._copy.entries:
            return []
        (vector,) = await self._embedder.embed_queries([query])
        return await asyncio.to_thread(self._nearest, vector, limit)

    def _nearest(self, vector: np.ndarray, limit: int) -> list[tuple[Experience, float]]:
        scores = self._copy.vectors @ vector
        best = np.argsort(-scores, kind="stable")[:limit]
        return [(self._copy.entries[row], float(scores[row])) for row in best]


@asynccontextmanager
async def sharing(config: BankConfig, load_embedder: LoadEmbedder) -> AsyncIterator[SearchSource]:
    """Open a bank for searching without keeping others from its folder.

    A folder is copied; one that a run has open is read through that run's manager, and a server's bank from the server.

    Args:
        config: Configuration of the bank.
        load_embedder: Returns the embedder for an identity.

    Raises:
        StoreError: If the bank cannot be read, or was built with another embedder.
    """
    source = None if config.url else await _copied_when_free(config, load_embedder)
    if source:
        yield source
        return
    async with reading(config, load_embedder) as live:
        yield live


async def _copied_when_free(config: BankConfig, load_embedder: LoadEmbedder) -> BankCopy | None:
    """Return a copy of the bank; None if a run has its folder open."""
    from verl_comprl.cli.bank.live import is_open_in_a_run

    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            copy = await _copied(config)
        except StoreError as error:
            if not isinstance(error.__cause__, FolderInUse):
                raise
            if is_open_in_a_run(Path(config.path)):
                return None
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        embedder = await load_embedder(copy.embedding)
        if difference := embedding_difference(copy.embedding, as_json(embedder.identity)):
            raise StoreError(
                f"experience bank {config.path} was built with another embedder: {difference}; name that one by "
                "--embedder, or embed the bank again with `comprl bank reembed`"
            )
        return BankCopy(copy, embedder)


async def _copied(config: BankConfig) -> Snapshot:
    with tempfile.TemporaryDirectory(prefix="comprl-bank-") as folder:
        async with opened(config, read_only=True) as bank:
            await bank.save(Path(folder) / "bank")
        return await asyncio.to_thread(read_snapshot, Path(folder) / "bank", None)
