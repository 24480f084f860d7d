"""Query vectors, kept by text: the K rollouts of one prompt ask the same, often at the same time."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
from cachetools import LRUCache

from verl_comprl.experience.embedding.base import Embedder


class QueryCache:
    """The query vectors of an embedder. Asked for while it is being computed, a vector is computed once."""

    def __init__(self, embedder: Embedder, size: int = 4096) -> None:
        """Keep at most ``size`` texts."""
        self._embedder = embedder
        self._vectors: LRUCache[str, np.ndarray] = LRUCache(size)
        self._under_way: dict[str, asyncio.Task[dict[str, np.ndarray]]] = {}
        self.counts: Counter[str] = Counter(embedded=0, hits=0, shared=0)
        """Texts given to the embedder, found here, and shared with an embedding that was under way."""

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of ``texts``, shape ``(len(texts), dimension)``, embedding only those not yet asked for.

        A failure reaches everybody who waits for the call and is not remembered.
        """
        found: dict[str, np.ndarray] = {}
        missing: dict[str, None] = {}
        waiting: list[asyncio.Task[dict[str, np.ndarray]]] = []
        for text in texts:
            if (vector := self._vectors.get(text)) is not None:
                found[text] = vector
                self.counts["hits"] += 1
            elif text in missing:
                self.counts["shared"] += 1
            elif task := self._under_way.get(text):
                self.counts["shared"] += 1
                waiting.append(task)
            else:
                missing[text] = None
        if missing:
            task = asyncio.create_task(self._embed(list(missing)))
            self._under_way.update(dict.fromkeys(missing, task))
            waiting.append(task)
        # Shielded: one impatient caller must not take the vector from the others.
        for vectors in await asyncio.gather(*map(asyncio.shield, waiting)):
            found |= vectors
        return np.stack([found[text] for text in texts])

    async def _embed(self, texts: list[str]) -> dict[str, np.ndarray]:
        try:
            self.counts["embedded"] += len(texts)
            vectors = dict(zip(texts, await self._embedder.embed_queries(texts), strict=True))
            self._vectors.update(vectors)
            return vectors
        finally:
            for text in texts:
                del self._under_way[text]
