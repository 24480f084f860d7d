"""Store interface.

Owns what a bank requires of the place that keeps its entries and vectors. Ranking is in ``retrieval``; counters, locks
and the order of writes are in ``ledger``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from verl_comprl.experience.schema import Experience
from verl_comprl.experience.store.errors import StoreError
from verl_comprl.experience.store.payload import Contents


@dataclass(frozen=True)
class SearchRequest:
    """One similarity search.

    Attributes:
        vector: Shape ``(dimension,)``, L2-normalised.
        limit: Number of entries wanted.
        task: Only entries that have this task among theirs; None for any.
        environment: Only entries that have this environment among theirs; None for any.
        exclude: Ids not to return.
        quarantined: Whether quarantined entries are returned too.
    """

    vector: np.ndarray
    limit: int
    task: str | None = None
    environment: str | None = None
    exclude: frozenset[str] = frozenset()
    quarantined: bool = False


class Hit(NamedTuple):
    """One entry found: ``score`` is the dot product of the normalised vectors, which may exceed 1 by rounding."""

    id: str
    score: float


def check_vectors(vectors: np.ndarray, *, count: int, dimension: int) -> np.ndarray:
    """Return ``vectors`` as float32, after checks that engines skip or answer with an obscure error.

    Args:
        vectors: Shape ``(count, dimension)``.
        count: Number of rows expected.
        dimension: Number of columns expected.

    Raises:
        StoreError: On another shape, or a row with NaN, infinity or only zeros.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.shape != (count, dimension):
        raise StoreError(f"vectors have shape {vectors.shape}, expected {(count, dimension)}")
    usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not usable.all():
        raise StoreError(f"vector {int(np.argmin(usable))} of {count} is zero or not finite")
    return vectors


def stack_rows(ids: Sequence[str], found: dict[str, Any], dimension: int) -> np.ndarray:
    """Return the vectors of ``ids`` in their order, shape ``(len(ids), dimension)`` float32.

    Raises:
        StoreError: If one is missing, or of another length.
    """
    missing = [id for id in ids if id not in found]
    if missing:
        raise StoreError(f"{len(missing)} of {len(ids)} entries have no vector in the store, first {missing[0]}")
    try:
        return np.array([found[id] for id in ids], dtype=np.float32).reshape(len(ids), dimension)
    except (TypeError, ValueError) as error:
        raise StoreError(f"the store has vectors that are no rows of {dimension} numbers") from error


class ExperienceStore(ABC):
    """Entries with one L2-normalised vector each. Every method raises ``StoreError`` and nothing else.

    A write that has returned survives the death of the process. One writer at a time; searches may run concurrently.

    Attributes:
        embedding: Identity of the embedder that made the vectors; stored with them, compared at every opening.
        dimension: Length of a vector.
        contents: What the last ``load`` found.
        shared: Whether another process can write while this one reads.
    """

    embedding: dict[str, Any]
    dimension: int
    contents: Contents
    shared: bool = False

    @abstractmethod
    async def load(self) -> list[Experience]:
        """Return every entry that can be read, in no particular order; ``contents`` then has what else was found."""

    @abstractmethod
    async def count(self) -> int:
        """Return the number of entries, as the engine counts them."""

    @abstractmethod
    async def search(self, requests: Sequence[SearchRequest]) -> list[list[Hit]]:
        """Return for each request the most similar entries, best first, ties by id."""

    @abstractmethod
    async def upsert(self, entries: Sequence[Experience], vectors: np.ndarray, replaces: Sequence[str] = ()) -> None:
        """Write entries with their vectors; an id that exists is replaced, which makes a retry harmless.

        Args:
            entries: The entries.
            vectors: Shape ``(len(entries), dimension)``.
            replaces: Entries that are deleted next; after a crash in between, ``contents.left_over`` names them.
        """

    @abstractmethod
    async def update(self, entries: Sequence[Experience]) -> None:
        """Rewrite entries and keep their vectors, for changes that leave the text alone; unknown ids are ignored."""

    async def fetch(self, ids: Sequence[str]) -> list[Experience]:
        """Return entries as another process may have written them since ``load``; only of a ``shared`` store."""
        return []

    @abstractmethod
    async def delete(self, ids: Sequence[str]) -> None:
        """Remove entries; unknown ids are ignored."""

    @abstractmethod
    async def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Return the vectors of ``ids``, in that order, shape ``(len(ids), dimension)`` float32."""

    @abstractmethod
    async def replace_all(
        self,
        entries: Sequence[Experience],
        vectors: np.ndarray,
        embedding: dict[str, Any] | None = None,
        *,
        switching: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        """Replace all entries by these; after a crash the store holds either the old or the new content.

        Searches find the old content until the new one is complete.

        Args:
            entries: The new content.
            vectors: Shape ``(len(entries), dimension)``; another dimension than before needs another ``embedding``.
            embedding: Identity of the embedder that made the vectors, with its ``dimension``; None if it is the same.
            switching: Open while searches go over to the new content, which waits for nothing.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Make everything written so far survive a power loss too."""

    @abstractmethod
    async def close(self) -> None:
        """Flush and release the storage; closing twice is allowed."""
