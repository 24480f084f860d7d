"""Start of a run with a bank that may hold something already: kept, saved aside, or the checkpoint's instead."""

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.experience.updates.quality import is_by_hand
from verl_comprl.manager.kept_quarantines import KeptQuarantines
from verl_comprl.manager.strangers import strangers

_NAMED = 10
"""Entries that a warning names."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What is there already when a manager opens the bank of its run."""

    keep_content: bool
    """Whether the run goes on, so that the bank should be its own; otherwise what it holds is saved aside and
    removed."""
    killed_in: int | None = None
    """Step in which this manager's process before was killed, so that the bank and the waiting distillations stay as
    they are; None at the start of a run."""
    checkpoint: Path | None = None
    """Our part of the checkpoint that the run continues, its own or another run's; after a kill, of its latest one."""

    async def restored(self, embedder: dict[str, Any]) -> set[str] | None:
        """Read the bank that is restored later, when the models are there; returns the ids of its entries.

        Refused only then, what the bank of the run holds would be gone already.

        Args:
            embedder: Identity of the run's.

        Returns:
            The ids; None if no bank is restored.

        Raises:
            SnapshotError: If it cannot be restored.
        """
        if self.killed_in is not None or self.checkpoint is None:
            return None
        snapshot = await asyncio.to_thread(read_snapshot, self.checkpoint / "bank", embedder)
        return {entry.id for entry in snapshot.entries}

    async def settle(self, bank: ExperienceBank, *, aside: str, run: Path, restored: set[str] | None) -> None:
        """Leave in an open bank what the run goes on with, and save aside or note what would be lost.

        Args:
            bank: The run's.
            aside: Path of a new folder, which gets a time stamp.
            run: The run's folder.
            restored: From :meth:`restored`.

        Raises:
            OSError: If the run's events cannot be read, or quarantines by hand cannot be read or noted.
            SnapshotError: If it cannot be saved aside.
        """
        aside = f"{aside}-{time.strftime('%Y%m%d-%H%M%S')}"
        quarantines = KeptQuarantines(run)
        if not self.keep_content:
            if len(bank):
                await bank.save(aside)
                await bank.clear()
            quarantines.forget()
        elif restored is not None:
            # The settings may name another bank than before, or another run may have used this one since.
            entries = bank.entries()
            unsaved = {entry.id for entry in entries} - restored
            if others := await asyncio.to_thread(strangers, unsaved, run):
                await bank.save(aside)
                what = "entries of the bank are not of this run; it is saved as"
                logger.warning("%d %s %s, and the checkpoint's takes its place", len(others), what, aside)
            await asyncio.to_thread(quarantines.note, [entry for entry in entries if entry.id in restored])
            own = (entry for entry in entries if entry.id in unsaved - others)
            if missing := sorted(entry.id for entry in own if is_by_hand(entry.quarantined)):
                what = "entries that were quarantined by hand are not in the checkpoint's bank; should one of them be"
                some = ", ".join(missing[:_NAMED]) + ", …" * (len(missing) > _NAMED)
                logger.warning("%d %s written again, quarantine it again: %s", len(missing), what, some)
        if self.killed_in is not None and self.checkpoint is not None and not len(bank):
            # The store was emptied before the process was killed, whose memory had the entries.
            await bank.restore(self.checkpoint / "bank", await asyncio.to_thread(quarantines.reasons))
            if len(bank):
                what = "the bank was empty when the experience manager began again"
                where = self.checkpoint.parent
                logger.warning("%s; it is that of the checkpoint in %s, with %d entries", what, where, len(bank))
