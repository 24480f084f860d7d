"""Where a run lets others read its bank: what ``comprl bank`` asks the manager, and the note that says where it is.

Reading only; a bank has one writer. The caller is ``cli.bank_live``.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.transfer.snapshot import entries_checksum

MANAGER_FILE = "manager.json"
"""In the bank's folder while a run holds it."""


class BankInspection:
    """The reading methods of a manager, in types that any Python can unpickle."""

    _bank: ExperienceBank

    async def bank_statistics(self) -> dict[str, Any]:
        """Return what the bank counted since its opening, and the embedder's identity."""
        return {**self._bank.statistics(), "embedding": self._bank.embedding}

    async def bank_entries(self) -> list[dict[str, Any]]:
        """Return all entries as of now, oldest first."""
        return [entry.model_dump() for entry in self._bank.entries()]

    async def bank_search(self, query: str, limit: int) -> list[tuple[dict[str, Any], float]]:
        """Return the entries most similar to a text, with their similarities."""
        return [(entry.model_dump(), score) for entry, score in await self._bank.search(query, limit)]

    async def bank_snapshot(self, folder: str) -> None:
        """Write a snapshot of the bank."""
        await self._bank.save(folder)

    async def bank_checksum(self) -> str:
        """Return the checksum of the entries as of now, with their counters."""
        return await asyncio.to_thread(entries_checksum, self._bank.entries())

    async def bank_verify(self) -> list[str]:
        """Return what is wrong between memory and store."""
        return await self._bank.verify()


def write_address(folder: Path, actor: str) -> None:
    """Say in the bank's folder where its manager can be reached; call it in the manager's process."""
    import ray  # not above: a reader sets what Ray looks at when it is imported

    context = ray.get_runtime_context()
    where = {
        "pid": os.getpid(),
        "ray_address": context.gcs_address,
        "namespace": context.namespace,
        "actor": actor,
        "auth_mode": os.environ.get("RAY_AUTH_MODE", "disabled"),  # Ray turns it on for clusters that it starts
    }
    (folder / MANAGER_FILE).write_text(json.dumps(where), encoding="utf-8")


def remove_address(folder: Path) -> None:
    """Take back what ``write_address`` said."""
    (folder / MANAGER_FILE).unlink(missing_ok=True)
