"""Opens the bank of a bank command, either directly or through the training run that has its folder open.

Owns opening, closing and the choice between the two. The commands are in ``read`` and ``write``.
"""

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from verl_comprl.cli.bank.interface import BankSource
from verl_comprl.experience import BankConfig, Embedder, Experience, ExperienceBank, StoreError
from verl_comprl.experience.transfer.query_language import Condition
from verl_comprl.folder_lock import FolderInUse
from verl_comprl.settings import mistakes

_UNLIMITED = 1_000_000_000
"""Capacity of banks opened here; a run applies its own capacity when it next adds an entry."""


def bank_config(options: argparse.Namespace) -> BankConfig:
    """Return the configuration of the bank that the arguments name.

    Raises:
        ValueError: If ``--url`` and ``--collection`` are not given together, or cannot be used.
    """
    if options.url:
        if not options.collection:
            raise ValueError("--url needs --collection: the name of the bank on the server")
        return _checked(url=options.url, collection=options.collection)
    if options.collection:
        raise ValueError("--collection is only for --url; a folder holds one bank")
    return _checked(path=options.path)


def _checked(**place: str) -> BankConfig:
    try:
        return BankConfig.model_validate({"capacity": _UNLIMITED, **place})
    except ValidationError as error:
        raise ValueError("; ".join(mistakes(error, BankConfig, "bank"))) from error


@asynccontextmanager
async def opened(
    config: BankConfig, embedder: Embedder | None = None, *, read_only: bool = False
) -> AsyncIterator[ExperienceBank]:
    """Open a bank, and close it at the end of the block."""
    bank = await ExperienceBank.open(config, embedder, read_only=read_only)
    try:
        yield bank
    finally:
        await bank.close()


async def stored_embedding(config: BankConfig) -> dict[str, Any] | None:
    """Return the identity of a bank's embedder; None if the bank does not exist or cannot be opened."""
    try:
        async with opened(config, read_only=True) as bank:
            return bank.embedding
    except StoreError:  # no bank yet; any other problem is raised again when it is opened for writing
        return None


@asynccontextmanager
async def reading(
    config: BankConfig,
    load_embedder: Callable[[dict[str, Any]], Awaitable[Embedder]] | None = None,
    wanted: Condition | None = None,
) -> AsyncIterator[BankSource]:
    """Open a bank for reading; if a run has its folder open, read through that run's manager.

    Args:
        config: Configuration of the bank.
        load_embedder: Returns the embedder for an identity; only needed for ``search``.
        wanted: What is searched for; the embedder, which takes seconds, is not loaded where no entry meets it.

    Raises:
        StoreError: If the bank cannot be read.
    """
    try:
        bank = await ExperienceBank.open(config, None, read_only=True)
        if load_embedder is not None and (wanted is None or any(map(wanted, bank.entries()))):
            # Opened again, since only an open bank says which embedder it needs.
            await bank.close()
            bank = await ExperienceBank.open(config, await load_embedder(bank.embedding), read_only=True)
    except StoreError as error:
        if not isinstance(error.__cause__, FolderInUse):
            raise
        from verl_comprl.cli.bank.live import connected  # loads Ray

        async with connected(Path(config.path), error) as manager:
            yield manager
        return
    try:
        yield _OpenBank(bank)
    finally:
        await bank.close()


class _OpenBank(BankSource):
    def __init__(self, bank: ExperienceBank) -> None:
        self._bank = bank

    async def statistics(self) -> dict[str, Any]:
        return {"embedding": self._bank.embedding}  # counters start at 0 when a bank is opened

    async def entries(self) -> list[Experience]:
        return self._bank.entries()

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        return await self._bank.search(query, limit)

    async def snapshot(self, folder: Path) -> None:
        await self._bank.save(folder)

    async def verify(self) -> list[str]:
        return await self._bank.verify()
