"""Quarantines by hand, which a run keeps: its checkpoint may be older, and their entries may be gone by a kill."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from verl_comprl.experience import Experience
from verl_comprl.experience.updates.quality import is_by_hand
from verl_comprl.experience.updates.sanitize import one_line
from verl_comprl.files import dated, patiently, write_atomically

FILE = "quarantined.json"
"""In the run's folder: reasons by id."""

logger = logging.getLogger(__name__)


class KeptQuarantines:
    """Entries that somebody has quarantined between two starts of a run, with the reasons."""

    def __init__(self, run: Path) -> None:
        """Use the file in the run's folder."""
        self._file = run / FILE

    def reasons(self) -> dict[str, str]:
        """Return the reasons by id, each one line; a damaged file is set aside, with a warning.

        Raises:
            OSError: If the file cannot be read, also some seconds later.
        """
        try:
            kept = json.loads(patiently(self._file.read_bytes))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            self._file.rename(aside := dated(self._file))
            logger.warning("what was quarantined by hand may be retrieved again: %s is damaged: %s", aside, error)
            return {}
        known = kept.items() if isinstance(kept, dict) else ()
        return {id: one_line(reason) or "by hand" for id, reason in known if isinstance(reason, str) and reason}

    def note(self, entries: Sequence[Experience]) -> None:
        """Bring the file up to date with entries of the bank; what it says of others, which may have left, is kept.

        Raises:
            OSError: If it cannot be read or written.
        """
        kept, there = self.reasons(), {entry.id for entry in entries}
        now = {id: reason for id, reason in kept.items() if id not in there}
        now |= {entry.id: entry.quarantined for entry in entries if is_by_hand(entry.quarantined)}
        if now != kept:
            write_atomically(self._file, json.dumps(now).encode())

    def forget(self) -> None:
        """Remove the file: the run begins anew."""
        self._file.unlink(missing_ok=True)
