"""The entries of an open bank, in memory: text, provenance, and counters that run ahead of the store.

Owns lookups and counting. When entries change, and how that reaches the store, is ``ledger``.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cachetools import LRUCache

from verl_comprl.experience.schema import Experience
from verl_comprl.experience.updates.planning import CLOCK_STEP


class EntryTable:
    """Entries by id, oldest first, and the extractor calls that are known to have been applied."""

    def __init__(self, entries: Iterable[Experience], max_calls: int) -> None:
        """Take over ``entries``; of the applied calls, the last ``max_calls`` are remembered."""
        self._max_calls = max_calls
        self.adopt(entries)

    def adopt(self, entries: Iterable[Experience]) -> None:
        """Replace the content."""
        self.by_id: dict[str, Experience] = {}
        self._records: dict[str, set[str]] = {}
        self._uncounted: set[str] = set()  # entries whose counters the store does not have yet
        self.quarantined: frozenset[str] = frozenset()
        # Entries carry the call that wrote them, so a reopened bank still knows the calls whose text it holds.
        self.applied: LRUCache[str, None] = LRUCache(self._max_calls)
        self.change(list(entries), ())
        self.sort()

    def sort(self) -> None:
        """Bring the entries into the order of their creation."""
        self.by_id = {
            entry.id: entry for entry in sorted(self.by_id.values(), key=lambda entry: (entry.created_at, entry.id))
        }

    def change(self, new: Sequence[Experience], removed: Collection[str]) -> None:
        """Remove entries and put new ones at the end."""
        for id in removed:
            entry = self.by_id.pop(id)
            self._uncounted.discard(id)
            if len(ids := self._records[entry.record_id]) > 1:
                ids.remove(id)
            else:
                del self._records[entry.record_id]
        for entry in new:
            self.by_id[entry.id] = entry
            self._records.setdefault(entry.record_id, set()).add(entry.id)
            if entry.record_id:
                self.applied[entry.record_id] = None
        if self.quarantined or any(entry.quarantined for entry in new):
            self.quarantined = frozenset(entry.id for entry in self.by_id.values() if entry.quarantined)

    def rewritten(self, changes: Mapping[str, Mapping[str, Any]]) -> list[Experience]:
        """Return entries as they will be with ``changes`` of their fields, by id."""
        return [self.by_id[id].model_copy(update=dict(fields)) for id, fields in changes.items()]

    def rewrite(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change fields of entries; what has been counted since ``rewritten`` stays."""
        self.by_id.update({entry.id: entry for entry in self.rewritten(changes)})
        self.quarantined = frozenset(entry.id for entry in self.by_id.values() if entry.quarantined)

    def count(self, id: str, **counters: Any) -> Experience:
        """Set counters of an entry and return it as it is now."""
        self.by_id[id] = entry = self.by_id[id].model_copy(update=counters)
        self._uncounted.add(id)
        return entry

    def written_by(self, record_id: str) -> list[str]:
        """Return the entries that a generation record wrote."""
        return sorted(self._records.get(record_id, ())) if record_id else []

    def take_uncounted(self) -> list[Experience]:
        """Return the entries whose counters changed since the last call; they count as written from now on."""
        taken, self._uncounted = self._uncounted, set()
        return [self.by_id[id] for id in taken]

    def give_back(self, entries: Iterable[Experience]) -> None:
        """Undo ``take_uncounted`` for entries that could not be written."""
        self._uncounted.update(entry.id for entry in entries if entry.id in self.by_id)

    def now(self) -> float:
        """Return the time in seconds, later than every entry's creation: entries keep their order when reopened."""
        newest = next(reversed(self.by_id.values())).created_at if self.by_id else 0.0
        return max(time.time(), newest + CLOCK_STEP)
