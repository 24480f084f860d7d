"""Table of a run's entries: text, lineage, fate, and what they were worth."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_comprl.viewer.blocks import Block, RowBlocks, table_blocks
from verl_comprl.viewer.comparison import Comparison, Tally

Event = Mapping[str, Any]


@dataclass
class Entry:
    """One entry; ``kind`` is how it was written: ``added``, ``updated``, ``merged``, or ``given`` to the run."""

    id: str
    kind: str = "given"
    step: int | None = None
    title: str = ""
    content: str = ""
    tasks: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    episode: str | None = None
    call: str | None = None
    version: int | None = None
    gone: int | None = None
    """Step in which it left the bank."""
    fate: str = "present"
    """``present``, ``quarantined``, or why it left: ``replaced``, ``merged``, ``discarded`` or ``evicted``."""
    reason: str = ""
    """Of a quarantine."""
    comparison: Comparison = field(default_factory=Comparison)
    asked: Tally = field(default_factory=Tally)
    """Episodes that read it only through an answer."""


class Entries:
    """Entries of one run by id, in the order in which they were written."""

    def __init__(self) -> None:
        """Start without entries."""
        self._entries: dict[str, Entry] = {}
        self._reads: dict[tuple[str, str], tuple[bool, bool]] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def read_events(self, events: Iterable[Event]) -> None:
        """Read the events of ``experience.jsonl``."""
        for event in events:
            kind, id = event.get("event"), event.get("entry")
            if not isinstance(id, str):
                continue
            if kind in ("written", "merged"):
                self._write(event)
            elif kind == "given":
                self._give(event)
            elif kind == "read":
                self.note_read(id, event.get("text", ""), event["episode"], event["success"], event.get("asked", False))
            elif kind == "removed":
                self._remove(id, event.get("step"), event.get("reason", "removed"))
            elif kind == "quarantined":
                entry = self.get(id)
                entry.fate, entry.reason = "quarantined", event.get("reason", "")

    def note_read(self, id: str, text: str, episode: str, success: bool, asked: bool) -> None:
        """Note a training episode that read an entry; the same twice counts once."""
        self.get(id, text)
        self._reads.setdefault((id, episode), (bool(success), bool(asked)))

    def get(self, id: str, text: str = "") -> Entry:
        """Return an entry; one that the run did not write was given to it, and all that is known is ``text``."""
        entry = self._entries.setdefault(id, Entry(id))
        if text and not entry.title and not entry.content:
            entry.title, _, entry.content = text.partition("\n")
        return entry

    def compare(self, free: Mapping[str, Tally]) -> None:
        """Compare the episodes that read each entry with the free ones of their prompts.

        Args:
            free: Free training episodes by prompt.
        """
        for (id, episode), (success, asked) in self._reads.items():
            entry = self._entries[id]
            if asked:
                entry.asked.add(success)
            else:
                prompt = episode.rpartition("_")[0]
                entry.comparison.add(success, prompt, free.get(prompt))

    def blocks(self, name: str) -> Iterable[Block]:
        """Return the table as blocks; call :meth:`compare` before."""
        details = RowBlocks()
        number = {id: row for row, id in enumerate(self._entries)}
        columns: dict[str, list[Any]] = {}
        for entry in self._entries.values():
            row = {
                "id": entry.id,
                "title": entry.title,
                "kind": entry.kind,
                "step": entry.step,
                "gone": entry.gone,
                "fate": entry.fate,
                "tasks": entry.tasks,
                "parents": [number[id] for id in entry.parents],
                **entry.comparison.columns(),
            }
            for column, value in row.items():
                columns.setdefault(column, []).append(value)
            details.add(
                {
                    "title": entry.title,  # the search reads details alone, and its words may stand in either
                    "content": entry.content,
                    "episode": entry.episode,
                    "call": entry.call,
                    "version": entry.version,
                    "reason": entry.reason,
                    **entry.comparison.details(),
                    "asked": [entry.asked.successes, entry.asked.count],
                }
            )
        return table_blocks(name, columns, details)

    def copies(self) -> list[dict[str, Any]]:
        """Return the texts that several entries have: their rows, and what they were worth together.

        The extractor often writes down again what the bank has, and each copy guides few episodes: only together do
        they tell what the lesson was worth. Rows of entries in the bank are first, those of the most used ones before
        others: the page of the first one shows its episodes. Call :meth:`compare` before.
        """
        rows: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        entries = [*self._entries.values()]
        for row, entry in sorted(enumerate(entries), key=_first_shown):
            if entry.title or entry.content:
                rows[entry.title, entry.content].append(row)
        found = []
        for equal in rows.values():
            if len(equal) > 1:
                pooled = Comparison.pooled(entries[row].comparison for row in equal)
                found.append({"rows": equal, "columns": pooled.columns(), "details": pooled.details()})
        return found

    @property
    def present(self) -> int:
        """Entries that have not left the bank, as far as the events say: those of older releases name no evictions."""
        return sum(entry.gone is None for entry in self._entries.values())

    @property
    def given(self) -> int:
        """Entries that the run did not write."""
        return sum(entry.kind == "given" for entry in self._entries.values())

    def _write(self, event: Event) -> None:
        entry = self.get(event["entry"])
        entry.title, entry.content = event.get("title", ""), event.get("content", "")
        entry.step, entry.version = event.get("step"), event.get("weight_version")
        entry.parents = tuple(event.get("parents", ()))
        entry.episode, entry.call = event.get("episode"), event.get("call")
        # Journals of older releases name only the episode's task of an entry that was written.
        entry.tasks = tuple(event.get("tasks", [event.get("task", "")]))
        entry.kind = "merged" if event["event"] == "merged" else "updated" if entry.parents else "added"
        for id in entry.parents:
            self._remove(id, entry.step, "merged" if entry.kind == "merged" else "replaced")

    def _give(self, event: Event) -> None:
        """Note an entry that the bank began with; its parents and its call are of another run."""
        entry = self.get(event["entry"])
        entry.title, entry.content = event.get("title", ""), event.get("content", "")
        entry.tasks = tuple(event.get("tasks", ()))

    def _remove(self, id: str, step: int | None, reason: str) -> None:
        entry = self.get(id)
        # The event of the text that replaced it says more than the removal, which both name.
        if entry.fate in ("present", "quarantined"):
            entry.gone, entry.fate = step, reason


def _first_shown(row: tuple[int, Entry]) -> tuple[bool, int]:
    return row[1].fate != "present", -len(row[1].comparison.guided)
