"""Where the bank commands find a bank: opened here, or served by the run that holds it.

Owns opening and closing, and the choice between the two. What is done with it is ``bank_reading`` and ``bank_writing``.
"""

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from verl_comprl.experience import BankConfig, Embedder, Experience, ExperienceBank, StoreError

_UNLIMITED = 1_000_000_000
"""Capacity here: how many entries may stay is the run's decision, made when it next adds one."""


class BankSource(Protocol):
    """What reading asks of a bank. Every method raises ``StoreError``."""

    async def statistics(self) -> dict[str, Any]:
        """Return what the bank says of itself."""
        ...

    async def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        ...

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        """Return the most similar entries with their similarities, best first."""
        ...

    async def snapshot(self, folder: Path) -> None:
        """Write a snapshot."""
        ...

    async def verify(self) -> list[str]:
        """Return what is wrong with the bank."""
        ...


def bank_config(options: argparse.Namespace) -> BankConfig:
    """Return the bank that the arguments name.

    Raises:
        ValueError: If they do not fit together.
    """
    if options.url:
        if not options.collection:
            raise ValueError("--url needs --collection: the name of the bank on the server")
        return BankConfig(url=options.url, collection=options.collection, capacity=_UNLIMITED)
    if options.collection:
        raise ValueError("--collection belongs to --url, a folder holds one bank only")
    return BankConfig(path=options.path, capacity=_UNLIMITED)


@asynccontextmanager
async def opened(
    config: BankConfig, embedder: Embedder | None = None, *, read_only: bool = False
) -> AsyncIterator[ExperienceBank]:
    """Open a bank and close it."""
    bank = await ExperienceBank.open(config, embedder, read_only=read_only)
    try:
        yield bank
    finally:
        await bank.close()


@asynccontextmanager
async def reading(
    config: BankConfig, load_embedder: Callable[[dict[str, Any]], Awaitable[Embedder]] | None = None
) -> AsyncIterator[BankSource]:
    """Give access to a bank, also to one in a folder that a run holds: through that run's manager then.

    Args:
        config: The bank.
        load_embedder: Returns the embedder for an identity; only needed for ``search``.

    Raises:
        StoreError: If the bank cannot be read.
    """
    try:
        bank = await ExperienceBank.open(config, None, read_only=True)
        if load_embedder is not None:  # a bank keeps its embedder, and only an open one says which it needs
            await bank.close()
            bank = await ExperienceBank.open(config, await load_embedder(bank.embedding), read_only=True)
    except StoreError as error:
        if not isinstance(error.__cause__, BlockingIOError):  # what the lock of a held folder answers
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
        return {"embedding": self._bank.embedding}  # the rest counts from the opening, which was just now

    async def entries(self) -> list[Experience]:
        return self._bank.entries()

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        return await self._bank.search(query, limit)

    async def snapshot(self, folder: Path) -> None:
        await self._bank.save(folder)

    async def verify(self) -> list[str]:
        return await self._bank.verify()
