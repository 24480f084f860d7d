"""Plans how an extractor's operations change the bank, before anything is written.

Owns the meaning of the operations, as a pure function. The plan is carried out by ``bank``.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from verl_comprl.experience.schema import (
    Add,
    Discard,
    Downvote,
    Experience,
    Merge,
    Retain,
    Return,
    Update,
    Upvote,
    derive_id,
)
from verl_comprl.experience.updates.parsing import Operation

CLOCK_STEP = 1e-6
"""Seconds between the creation times of entries of one call, so that their order survives reopening the bank."""


@dataclass(frozen=True)
class ApplyReport:
    """Result of applying the operations of one extractor call; the numbers count operations.

    ``rejections`` counts them by reason: ``vanished`` (a listed entry is no longer in the bank), ``bad_index``,
    ``empty_text``, ``duplicate`` (near-copy of another entry). ``repeated`` marks a call that was applied before:
    nothing changed, the numbers are 0, and the ids are those of its entries that are still there, and of what these
    replaced.
    """

    added: int = 0
    updated: int = 0
    merged: int = 0
    retained: int = 0
    discarded: int = 0
    returned: int = 0
    upvoted: int = 0
    downvoted: int = 0
    rejected: int = 0
    rejections: Mapping[str, int] = field(default_factory=dict)
    evicted_ids: tuple[str, ...] = ()
    """Entries removed because the bank was full, new ones among them."""
    new_ids: tuple[str, ...] = ()
    surviving_ids: tuple[str, ...] = ()
    """The listed entries that are still in the bank, then the new ones."""
    removed_ids: tuple[str, ...] = ()
    """Entries that are no longer in the bank: replaced, discarded or evicted."""
    repeated: bool = False

    @property
    def evicted(self) -> int:
        """Number of entries removed because the bank was full."""
        return len(self.evicted_ids)


@dataclass(frozen=True)
class Changes:
    """Entries to write, ids to remove, votes to count by id, and the report to return once that is done.

    ``positions`` are those of the operations that wrote the new entries, in the same order.
    """

    new: tuple[Experience, ...]
    positions: tuple[int, ...]
    removed: tuple[str, ...]
    upvotes: Mapping[str, int]
    downvotes: Mapping[str, int]
    report: ApplyReport


INHERITED = "replaces a quarantined entry: "
"""Beginning of the reason of what replaces a quarantined entry, before that entry's."""
_TWICE = INHERITED * 2
_NAMES = ("tasks", "environments")
_COUNTED_AS: Mapping[type[Operation], str] = {
    Add: "added",
    Update: "updated",
    Merge: "merged",
    Retain: "retained",
    Discard: "discarded",
    Return: "returned",
    Upvote: "upvoted",
    Downvote: "downvoted",
}


def plan_changes(
    entries: Mapping[str, Experience],
    operations: Sequence[Operation],
    *,
    call_id: str,
    listed: Sequence[str],
    provenance: Mapping[str, Any],
    capacity: int,
    duplicates: Collection[int] = (),
    current: Callable[[str], str | None],
) -> Changes:
    """Return the changes that ``operations`` make to ``entries``.

    An update of an entry that was replaced meanwhile replaces its newest descendant; if nothing is left of the listed
    entries, or they were merged with others, it adds a new one. So siblings that update the same entry end with the
    newest text, none is rejected, and none replaces a text that sums up entries which its episode did not read.
    Two updates of entries that have become the same one both replace it, so that no text is lost. Any other operation
    on an entry that is no longer in the bank is rejected as a whole; so is an update of a listed entry that an earlier
    operation of the same call removed. A vote on an entry that the same call replaces is only reported, wherever it
    stands: it judged the old text, and the new one starts without votes. A new entry that replaces others keeps their
    tasks and environments, in addition to those of the call's episode.

    Args:
        entries: The bank, oldest first.
        operations: With sanitised texts; the position in this list makes a new entry's id.
        call_id: The extractor call, recorded with its entries.
        listed: Ids of the entries in the prompt; operations refer to them by 1-based index.
        provenance: Further fields of new entries; ``created_at`` is that of the first.
        capacity: Maximum number of entries; quarantined ones are evicted first, then the oldest.
        duplicates: Positions of operations to reject as duplicates.
        current: Gives what an entry is or has become, None if nothing is left of it
            (:meth:`~verl_comprl.experience.entries.EntryTable.current`).
    """
    new: dict[str, Experience] = {}
    positions: dict[str, int] = {}
    removed: dict[str, None] = {}
    taken: set[str] = set()  # listed entries that an operation has removed, under the ids that they were listed by
    counts: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    votes: dict[type[Operation], Counter[str]] = {Upvote: Counter(), Downvote: Counter()}
    # Positions count rejected operations too: an id must not depend on what else the bank rejects, or the same call,
    # repeated on a bank that has changed, would write other ids. (An entry that was imported meanwhile can change one.)
    for position, operation in enumerate(operations):
        indices: tuple[int, ...] = getattr(operation, "ids", ())
        if any(not 1 <= index <= len(listed) for index in indices):
            rejections["bad_index"] += 1
            continue
        named = tuple(listed[index - 1] for index in indices)
        parents = descendants(named, current) if isinstance(operation, Update) else named
        votes_only = isinstance(operation, Upvote | Downvote)  # on the text that the episode read
        if (taken.intersection(named) and not votes_only) or any(parent not in entries for parent in parents):
            rejections["vanished"] += 1
            continue
        if position in duplicates:
            rejections["duplicate"] += 1
            continue
        if isinstance(operation, Add | Update | Merge):
            if not operation.content:
                rejections["empty_text"] += 1
                continue
            fields = {
                **provenance,
                "id": _unused(derive_id(call_id, position), entries),
                "record_id": call_id,
                "created_at": provenance["created_at"] + position * CLOCK_STEP,
            }
            new[fields["id"]] = _entry(operation, [entries[parent] for parent in parents], fields)
            positions[fields["id"]] = position
        if isinstance(operation, Update | Merge | Discard):
            removed.update(dict.fromkeys(parents))
            taken.update(named)
        if votes_only:
            votes[type(operation)].update(parents)
        added = isinstance(operation, Update) and not parents
        counts["added" if added else _COUNTED_AS[type(operation)]] += 1

    surviving = [id for id in listed if id in entries and id not in removed] + list(new)
    excess = max(0, len(entries) - len(removed) + len(new) - capacity)
    evicted = _first_to_go(entries, new, removed, excess)
    removed.update(dict.fromkeys(evicted))
    counted: dict[str, Any] = dict(counts)
    report = ApplyReport(
        **counted,
        rejected=rejections.total(),
        rejections=dict(rejections),
        evicted_ids=tuple(evicted),
        new_ids=tuple(id for id in new if id not in removed),
        surviving_ids=tuple(id for id in surviving if id not in removed),
        removed_ids=tuple(id for id in removed if id in entries),
    )
    return Changes(
        new=tuple(new[id] for id in report.new_ids),
        positions=tuple(positions[id] for id in report.new_ids),
        removed=report.removed_ids,
        upvotes={id: count for id, count in votes[Upvote].items() if id not in removed},
        downvotes={id: count for id, count in votes[Downvote].items() if id not in removed},
        report=report,
    )


def _unused(id: str, entries: Mapping[str, Experience]) -> str:
    """Return ``id``, or one derived from it where an entry has it: imported ones keep what a call named them before."""
    while id in entries:
        id = derive_id(id)
    return id


def _first_to_go(
    entries: Mapping[str, Experience], new: Mapping[str, Experience], removed: Collection[str], count: int
) -> list[str]:
    """Return the ids of ``count`` entries to evict: quarantined ones, which no query can find, before the oldest."""
    if not count:
        return []
    quarantined = [id for id, entry in entries.items() if entry.quarantined and id not in removed]
    others = (id for id in chain(entries, new) if id not in removed and not (id in entries and entries[id].quarantined))
    return list(islice(chain(quarantined, others), count))


def descendants(ids: Iterable[str], current: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the entries that ``ids`` are or have become, without those of which nothing is left."""
    return tuple(dict.fromkeys(filter(None, map(current, ids))))


def _entry(operation: Add | Update | Merge, parents: Sequence[Experience], fields: Mapping[str, Any]) -> Experience:
    names = {name: [*fields[name], *chain(*(getattr(parent, name) for parent in parents))] for name in _NAMES}
    # Or the text of an entry that was found harmful would come back in other words.
    reason = next((parent.quarantined for parent in parents if parent.quarantined), "")
    return Experience(
        quarantined=reason and f"{INHERITED}{reason}".replace(_TWICE, INHERITED),
        title=operation.title,
        content=operation.content,
        parents=tuple(parent.id for parent in parents),
        ancestors=(parents[0].id, *parents[0].ancestors) if len(parents) == 1 else (),
        **{**fields, **names},
    )
