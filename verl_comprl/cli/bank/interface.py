"""Interfaces of the bank commands to a bank, which is open here, in a training run, or copied into memory."""

from pathlib import Path
from typing import Any, Protocol

from verl_comprl.experience import Experience


class SearchSource(Protocol):
    """A bank that can be searched. Every method may raise ``StoreError``."""

    async def entries(self) -> list[Experience]:
        """Return all entries, oldest first."""
        ...

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        """Return the most similar entries with their similarities, best first."""
        ...


class BankSource(SearchSource, Protocol):
    """Interface of the read commands to a bank. Every method may raise ``StoreError``."""

    async def statistics(self) -> dict[str, Any]:
        """Return the embedder's identity, and the counters if the bank is open in a run."""
        ...

    async def snapshot(self, folder: Path) -> None:
        """Write a snapshot of the bank to ``folder``."""
        ...

    async def verify(self) -> list[str]:
        """Return the problems found, one line of text each."""
        ...
