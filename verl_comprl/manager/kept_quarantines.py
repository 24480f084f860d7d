"""Quarantines by hand, which a run keeps: its checkpoint may be older, and their entries may be gone by a kill."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from verl_comprl.experience import Experience
from verl_comprl.experience.updates.quality import is_by_hand
from verl_comprl.files import write_atomically

FILE = "quarantined.json"
"""In the run's folder: reasons by id."""

logger = logging.getLogger(__name__)


class KeptQuarantines:
    """Entries that somebody has quarantined between two starts of a run, with the reasons."""

    def __init__(self, run: Path) -> None:
        """Use the file in the run's folder."""
        self._file = run / FILE

    def reasons(self) -> dict[str, str]:
        """Return the reasons by id; none, with a warning, if the file cannot be read."""
        try:
            kept = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("entries may be retrieved again that were quarantined by hand: %s: %s", self._file, error)
            return {}
        known = kept.items() if isinstance(kept, dict) else ()
        return {id: reason for id, reason in known if isinstance(reason, str) and reason}

    def note(self, entries: Sequence[Experience]) -> None:
        """Bring the file up to date with the bank of the run; what it says of entries that have left is kept.

        Raises:
            OSError: If it cannot be written.
        """
        kept, there = self.reasons(), {entry.id for entry in entries}
        now = {id: reason for id, reason in kept.items() if id not in there}
        now |= {entry.id: entry.quarantined for entry in entries if is_by_hand(entry.quarantined)}
        if now != kept:
            write_atomically(self._file, json.dumps(now).encode())

    def forget(self) -> None:
        """Remove the file: the run begins anew."""
        self._file.unlink(missing_ok=True)
