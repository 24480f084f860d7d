"""Read access to the bank of a running manager for ``comprl bank``, and the file with the manager's address.

Read-only, since a bank has one writer. The client is ``cli.bank.live``.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.transfer.snapshot import entries_checksum
from verl_comprl.files import write_atomically

ADDRESS_FILE = "address.json"
"""Address file in the bank's folder, which exists while a run has the bank open."""


class BankInspection:
    """Read methods of the manager's actor; they return built-in types, which any Python process can unpickle."""

    _bank: ExperienceBank

    async def bank_statistics(self) -> dict[str, Any]:
        """Return the bank's counters since it was opened, and the embedder's identity."""
        return {**self._bank.statistics(), "embedding": self._bank.embedding}

    async def bank_entries(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first."""
        return [entry.model_dump() for entry in self._bank.entries()]

    async def bank_search(self, query: str, limit: int) -> list[tuple[dict[str, Any], float]]:
        """Return the entries most similar to a text, with their similarities."""
        return [(entry.model_dump(), score) for entry, score in await self._bank.search(query, limit)]

    async def bank_snapshot(self, folder: str) -> None:
        """Write a snapshot of the bank."""
        await self._bank.save(folder)

    async def bank_checksum(self) -> str:
        """Return the checksum of the current entries and their counters."""
        return await asyncio.to_thread(entries_checksum, self._bank.entries())

    async def bank_verify(self) -> list[str]:
        """Return the differences between memory and store, one line of text each."""
        return await self._bank.verify()


def write_address(folder: Path, actor: str) -> None:
    """Write the address of the bank's manager into the bank's folder; call this in the manager's process."""
    import ray  # not at the top: readers import this module, and must set RAY_AUTH_MODE before they import Ray

    context = ray.get_runtime_context()
    address = {
        "pid": os.getpid(),
        "ray_address": context.gcs_address,
        "namespace": context.namespace,
        "actor": actor,
        "auth_mode": os.environ.get("RAY_AUTH_MODE", "disabled"),  # Ray enables it for clusters it starts
    }
    write_atomically(folder / ADDRESS_FILE, json.dumps(address).encode())


def remove_address(folder: Path) -> None:
    """Remove the file that :func:`write_address` wrote."""
    (folder / ADDRESS_FILE).unlink(missing_ok=True)
