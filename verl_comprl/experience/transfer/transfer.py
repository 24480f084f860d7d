"""Saves, restores, imports and re-embeds whole banks.

Owns the steps. The file format is in ``snapshot``; every write goes through ``ledger``.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_comprl.experience.embedding.base import Embedder, document
from verl_comprl.experience.ledger import Ledger
from verl_comprl.experience.schema import Experience, TaskUsage, derive_id, is_uuid
from verl_comprl.experience.store.errors import StoreError
from verl_comprl.experience.transfer.snapshot import Snapshot, SnapshotError, read_snapshot, write_snapshot
from verl_comprl.experience.updates.sanitize import LINE_CHARS, one_line, sanitize

_BATCH = 256
"""Texts or entries per call, so that other tasks of the event loop run in between."""


@dataclass(frozen=True)
class ImportReport:
    """Result of importing a snapshot, in numbers of entries.

    ``skipped``: already in the bank with the same text. ``replaced``: left out since an entry of the bank or of the
    snapshot says that it replaced their ids; with which text, is not kept. ``rejected``: without text after sanitising.
    ``evicted``: removed because the bank was full, old and imported entries together. ``superseded``: entries of the
    bank that imported ones say they replaced; they are kept.
    """

    added: int = 0
    skipped: int = 0
    replaced: int = 0
    rejected: int = 0
    evicted: int = 0
    superseded: int = 0


async def save_snapshot(ledger: Ledger, folder: Path) -> None:
    """Write a consistent snapshot to ``folder``."""
    # Only the reading needs the lock: entries are immutable, and changes need not wait for the files.
    async with ledger.unchanged():
        entries = list(ledger.table.by_id.values())
        vectors, embedding = await ledger.store.vectors([entry.id for entry in entries]), ledger.store.embedding
    await asyncio.to_thread(write_snapshot, folder, entries, vectors, embedding)


async def restore_snapshot(ledger: Ledger, folder: Path, quarantined: Mapping[str, str]) -> list[str]:
    """Replace the content by a snapshot, see ``ExperienceBank.restore``."""
    embedding = ledger.store.embedding
    snapshot = await asyncio.to_thread(_read, folder, embedding)
    excluded = [entry.id for entry in snapshot.entries if entry.id in quarantined and not entry.quarantined]
    changed = {id: {"quarantined": quarantined[id]} for id in excluded}
    entries = [
        entry.model_copy(update=changed[entry.id]) if entry.id in changed else entry for entry in snapshot.entries
    ]

    async def write() -> None:
        _check_same(ledger, embedding)
        await ledger.replace_all(entries, snapshot.vectors)

    await ledger.write(write)
    return excluded


async def add_snapshot(
    ledger: Ledger,
    folder: Path,
    embedder: Embedder | None,
    *,
    clean: Callable[[str, str], tuple[str, str]],
    capacity: int,
) -> ImportReport:
    """Add the entries that are missing; see ``ExperienceBank.add_snapshot``.

    Args:
        ledger: The bank to add to.
        folder: The snapshot.
        embedder: Embeds the texts; None takes the vectors of the snapshot.
        clean: Sanitises title and content.
        capacity: Maximum number of entries; quarantined ones are evicted first, then the oldest.
    """
    embedding = ledger.store.embedding
    entries, old_vectors, *_ = await asyncio.to_thread(_read, folder, None if embedder else embedding)
    cleaned: list[Experience] = []
    rows: list[int] = []
    for row, entry in enumerate(entries):
        title, content = clean(entry.title, entry.content)
        if content:
            cleaned.append(_imported(entry, title, content))
            rows.append(row)
    vectors = await embed(embedder, cleaned) if embedder else old_vectors[rows]

    async def write() -> ImportReport:
        _check_same(ledger, embedding)
        existing = ledger.table.by_id
        new, replaced = _missing(existing, cleaned, clean)
        first_to_go = sorted(
            (*existing.values(), *new.values()), key=lambda entry: (not entry.quarantined, entry.created_at, entry.id)
        )
        evicted = {entry.id for entry in first_to_go[: max(0, len(first_to_go) - capacity)]}
        kept = [n for n, entry in new.items() if entry.id not in evicted]
        for start in range(0, len(kept), _BATCH):
            batch = kept[start : start + _BATCH]
            await ledger.change([new[n] for n in batch], vectors[batch], ())
        await ledger.change((), vectors[:0], [id for id in existing if id in evicted])
        # Imported entries can be older than those of the bank, and eviction takes the first entries of the table.
        ledger.table.sort()
        return ImportReport(
            added=len(kept),
            skipped=len(cleaned) - len(new) - replaced,
            replaced=replaced,
            rejected=len(entries) - len(cleaned),
            evicted=len(evicted),
            superseded=len(_replaced(new[n] for n in kept).intersection(existing)),
        )

    return await ledger.write(write)


async def reembed(ledger: Ledger, embedder: Embedder, switched: Callable[[], None] = lambda: None) -> None:
    """Embed every entry with ``embedder`` and record its identity in the store.

    Args:
        ledger: The bank.
        embedder: The new embedder.
        switched: Called before any query or write uses the new vectors.
    """
    vectors: dict[str, np.ndarray] = {}

    async def switch() -> bool:
        if any(id not in vectors for id in ledger.table.by_id):
            return False  # entries were added during the embedding, which holds no lock
        await ledger.replace_vectors(vectors, embedder.identity, switched)
        return True

    while True:
        missing = [entry for entry in ledger.table.by_id.values() if entry.id not in vectors]
        vectors.update(zip((entry.id for entry in missing), await embed(embedder, missing), strict=True))
        if await ledger.write(switch):
            return


async def embed(embedder: Embedder, entries: Sequence[Experience]) -> np.ndarray:
    """Return the vectors of entries, shape ``(len(entries), dimension)``, made in parts: queries may wait for one."""
    texts = [document(entry, embedder.identity) for entry in entries]
    parts = [await embedder.embed_documents(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
    return np.concatenate(parts) if parts else np.zeros((0, embedder.dimension), np.float32)


def _read(folder: Path, embedding: dict[str, Any] | None) -> Snapshot:
    snapshot = read_snapshot(folder, embedding)
    if foreign := next((entry.id for entry in snapshot.entries if not is_uuid(entry.id)), None):
        raise SnapshotError(f"snapshot {folder} has an entry whose id is not a UUID: {foreign[:80]!r}")
    return snapshot


def _check_same(ledger: Ledger, embedding: dict[str, Any]) -> None:
    """Check that the bank still has the embedder for which vectors were read or made."""
    if ledger.store.embedding != embedding:
        raise StoreError("the bank was embedded again meanwhile, and nothing has changed; read the snapshot again")


def _replaced(entries: Iterable[Experience]) -> set[str]:
    """Return what the entries replaced, directly or by way of others that are gone."""
    # A call that is repeated after an import can give a text the id of one that it stands for.
    return {old for entry in entries for old in (*entry.parents, *entry.ancestors) if old != entry.id}


def _missing(
    existing: Mapping[str, Experience], imported: Sequence[Experience], clean: Callable[[str, str], tuple[str, str]]
) -> tuple[dict[int, Experience], int]:
    """Return the imported entries that a bank has neither held nor replaced, by position, and how many were replaced.

    Two banks that distilled one episode with different models have different texts under one id: the imported text gets
    a second one.
    """
    replaced = _replaced((*existing.values(), *imported))
    ids = {*existing, *(entry.id for entry in imported)}
    own_seconds = {*map(_second_id, existing.values())}
    by_time: dict[float, list[Experience]] = defaultdict(list)
    for entry in existing.values():
        by_time[entry.created_at].append(entry)
    missing: dict[int, Experience] = {}
    left_out = 0
    for position, entry in enumerate(imported):
        second, there = _second_id(entry), existing.get(entry.id)
        if second in ids or own_seconds & {entry.id, second}:
            continue
        if there and _same(there, entry, clean):
            continue
        if any(_is_second(other, entry) for other in by_time[entry.created_at]):
            continue
        if replaced & {entry.id, second}:
            left_out += 1
            continue
        missing[position] = entry.model_copy(update={"id": second}) if there else entry
    return missing, left_out


def _same(there: Experience, imported: Experience, clean: Callable[[str, str], tuple[str, str]]) -> bool:
    """Return whether a bank has an imported text already, as it is or cut."""
    # The bank may be open with tighter limits than when it took the text, or the other way round: then it has the
    # beginning. Written at the same time, it is not the text that another bank's model has written for that episode.
    return clean(there.title, there.content) == (imported.title, imported.content) or (
        there.created_at == imported.created_at and _one_begins_with_the_other(there, imported)
    )


def _is_second(one: Experience, other: Experience) -> bool:
    """Return whether one of two entries of the same time has got a second id, that of its text as it was cut then."""
    return _one_begins_with_the_other(one, other) and (
        one.id == _second_id(one, of=other.id) or other.id == _second_id(other, of=one.id)
    )


def _one_begins_with_the_other(one: Experience, other: Experience) -> bool:
    pairs = (one.title, other.title), (one.content, other.content)
    return all(text.startswith(beginning) or beginning.startswith(text) for text, beginning in pairs)


def _second_id(entry: Experience, of: str = "") -> str:
    return derive_id(of or entry.id, entry.title, entry.content)


def _imported(entry: Experience, title: str, content: str) -> Experience:
    """Return an entry of another bank with clean texts, without what only its own bank can vouch for."""
    return entry.model_copy(
        update={
            "title": title,
            "content": content,
            "tasks": tuple(filter(_is_name, entry.tasks)),
            "environments": tuple(filter(_is_name, entry.environments)),
            "usage": _imported_usage(entry.usage),
            # A call of that name here would count as applied, and its answer would be lost.
            "record_id": "",
            "source_trajectory": one_line(entry.source_trajectory),
            "quarantined": entry.quarantined and (one_line(entry.quarantined) or "quarantined in another bank"),
            "parents": tuple(filter(is_uuid, entry.parents)),
            "ancestors": tuple(filter(is_uuid, entry.ancestors)),
            # From the future it would be the last to be evicted.
            "created_at": min(entry.created_at, time.time()),
        }
    )


def _imported_usage(usage: Sequence[TaskUsage]) -> tuple[TaskUsage, ...]:
    return tuple({item.task: item for item in usage if not item.task or _is_name(item.task)}.values())


def _is_name(name: str) -> bool:
    """Return whether a name is one line without control tokens, and not too long."""
    return name.splitlines() == [name] and sanitize(name, LINE_CHARS) == name
