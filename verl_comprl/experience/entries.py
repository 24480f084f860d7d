"""In-memory table of the entries of an open bank, with counters that are newer than the store's.

Owns lookups and counting. When entries change, and how a change reaches the store, is decided in ``ledger``.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cachetools import LRUCache

from verl_comprl.experience.schema import LAST_SECOND, Experience, TaskUsage
from verl_comprl.experience.updates.planning import CLOCK_STEP


class EntryTable:
    """Entries by id, oldest first, and the extractor calls that were already applied."""

    def __init__(self, entries: Iterable[Experience], max_calls: int) -> None:
        """Hold ``entries``, and remember the last ``max_calls`` applied calls."""
        self._max_calls = max_calls
        self.replace_all(entries)

    def replace_all(self, entries: Iterable[Experience]) -> None:
        """Replace all entries."""
        self.by_id: dict[str, Experience] = {}
        self._records: dict[str, set[str]] = {}
        self._unwritten: set[str] = set()  # entries whose counters the store does not have yet
        self.quarantined: frozenset[str] = frozenset()
        # Entries carry the call that wrote them, so a reopened bank still knows the calls whose text it holds.
        self.applied: LRUCache[str, None] = LRUCache(self._max_calls)
        self._successors: dict[str, set[str]] = {}  # by the id of each of their ancestors
        self.change(list(entries), ())
        self.sort()

    def sort(self) -> None:
        """Sort the entries by creation time."""
        self.by_id = {
            entry.id: entry for entry in sorted(self.by_id.values(), key=lambda entry: (entry.created_at, entry.id))
        }

    def change(self, new: Sequence[Experience], removed: Collection[str]) -> None:
        """Remove entries and append new ones; a new one whose id is there takes that entry's place."""
        for id in removed:
            self._unlink(self.by_id.pop(id))
            self._unwritten.discard(id)
        for entry in new:
            if (old := self.by_id.get(entry.id)) is not None:
                self._unlink(old)
            self.by_id[entry.id] = entry
            self._records.setdefault(entry.record_id, set()).add(entry.id)
            if entry.record_id:
                self.applied[entry.record_id] = None
            for ancestor in entry.ancestors:
                self._successors.setdefault(ancestor, set()).add(entry.id)
        if self.quarantined or any(entry.quarantined for entry in new):
            self.quarantined = frozenset(entry.id for entry in self.by_id.values() if entry.quarantined)

    def _unlink(self, entry: Experience) -> None:
        """Remove an entry from the records and lineages that name it."""
        if len(ids := self._records[entry.record_id]) > 1:
            ids.remove(entry.id)
        else:
            del self._records[entry.record_id]
        for ancestor in entry.ancestors:
            self._successors[ancestor].discard(entry.id)
            if not self._successors[ancestor]:
                del self._successors[ancestor]

    def was_applied(self, call_id: str) -> bool:
        """Return whether an extractor call was applied: one that wrote an entry which is still there always counts."""
        return call_id in self.applied or bool(call_id and call_id in self._records)

    def current(self, id: str) -> str | None:
        """Return an entry's id, or that of the newest entry which stands for it now; None if nothing is left of it.

        Follows from the entries alone, so that a bank that was opened again, or restored, gives the same.
        """
        if id in self.by_id:
            return id
        found = self._successors.get(id, ())
        return max(found, key=lambda id: (self.by_id[id].created_at, id), default=None)

    def rewritten(self, changes: Mapping[str, Mapping[str, Any]]) -> list[Experience]:
        """Return copies of entries with ``changes`` applied, which are new field values by id."""
        return [self.by_id[id].model_copy(update=dict(fields)) for id, fields in changes.items()]

    def rewrite(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply ``changes`` to the current entries, so that what was counted since ``rewritten`` is kept."""
        self.by_id.update({entry.id: entry for entry in self.rewritten(changes)})
        self.quarantined = frozenset(entry.id for entry in self.by_id.values() if entry.quarantined)

    def set_counters(self, id: str, **counters: Any) -> Experience:
        """Set counters of an entry, mark it as unwritten, and return the updated entry."""
        self.by_id[id] = entry = self.by_id[id].model_copy(update=counters)
        self._unwritten.add(id)
        return entry

    def count_outcome(self, id: str, task: str, success: bool, *, asked: bool) -> None:
        """Count an episode of ``task`` that read an entry: as its guide, or only in an answer; ignore an unknown id."""
        if id not in self.by_id:
            return
        item = self._usage(id, task)
        counts = (
            {"asked": item.asked + 1, "asked_successes": item.asked_successes + success}
            if asked
            else {"uses": item.uses + 1, "successes": item.successes + success}
        )
        self._set_usage(id, item.model_copy(update=counts))

    def count_comparison(self, id: str, task: str, success: bool, free_success: float, *, weight: float) -> None:
        """Compare an episode that ``count_outcome`` counted with the free half; ignore an unknown id."""
        if id not in self.by_id:
            return
        item = self._usage(id, task)
        # Not if the bank was replaced meanwhile: an entry with more comparisons than episodes could not be read again.
        if item.compared + weight <= item.uses + item.asked:
            counts = {
                "compared": item.compared + weight,
                "compared_successes": item.compared_successes + weight * success,
                "free_successes": item.free_successes + weight * free_success,
            }
            self._set_usage(id, item.model_copy(update=counts))

    def _usage(self, id: str, task: str) -> TaskUsage:
        return next((item for item in self.by_id[id].usage if item.task == task), TaskUsage(task=task))

    def _set_usage(self, id: str, usage: TaskUsage) -> None:
        items = {item.task: item for item in (*self.by_id[id].usage, usage)}
        self.set_counters(id, usage=tuple(items[task] for task in sorted(items)))

    def count_training(self, record_id: str, step: int) -> None:
        """Count one CISPO sample for every entry that a generation record wrote."""
        for id in self._records.get(record_id, ()) if record_id else ():
            self.set_counters(id, trainings=self.by_id[id].trainings + 1, last_trained_step=step)

    def take_unwritten(self) -> list[Experience]:
        """Return the entries whose counters changed since the last call, and mark them as written."""
        taken, self._unwritten = self._unwritten, set()
        return [self.by_id[id] for id in taken]

    def mark_unwritten(self, entries: Iterable[Experience]) -> None:
        """Undo ``take_unwritten`` for entries that could not be written."""
        self._unwritten.update(entry.id for entry in entries if entry.id in self.by_id)

    def now(self) -> float:
        """Return a creation time for a new entry: the current time, but always after that of the newest entry.

        Entries are sorted by creation time when a bank is opened; a clock that was set back must not reorder them. An
        entry that claims to come from the end of time is an exception: no time is later than its.
        """
        newest = next(reversed(self.by_id.values())).created_at if self.by_id else 0.0
        later = newest + CLOCK_STEP
        return max(time.time(), later if later < LAST_SECOND / 2 else 0.0)
