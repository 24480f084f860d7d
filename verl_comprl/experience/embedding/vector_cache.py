"""Cache of vectors by text.

The K rollouts of a prompt send the same query, often at the same time, and an extractor writes many entries under the
same title.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from cachetools import LRUCache

from verl_comprl.experience.embedding.errors import EmbedderUnavailable


class VectorCache:
    """LRU cache in front of an embedder. A vector requested while it is being computed is not computed again."""

    def __init__(self, embed: Callable[[Sequence[str]], Awaitable[np.ndarray]], size: int = 4096) -> None:
        """Keep at most ``size`` vectors of ``embed``, one of an embedder's methods."""
        self._compute = embed
        self._vectors: LRUCache[str, np.ndarray] = LRUCache(size)
        self._in_progress: dict[str, asyncio.Task[dict[str, np.ndarray]]] = {}
        self.counts: Counter[str] = Counter(embedded=0, hits=0, shared=0)
        """Texts given to the embedder, found in the cache, and shared with an embedding in progress."""

    async def embed(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the vectors of ``texts``, each of shape ``(dimension,)``, embedding only those that are new.

        A failure is raised to every caller that waits for the embedding, and is not cached. Neither is a vector that
        cannot be used: the embedder may be well again the next time.
        """
        # Collected here and not read back from the cache: a batch larger than the cache evicts its own vectors.
        found: dict[str, np.ndarray] = {}
        missing: dict[str, None] = {}
        waiting: list[asyncio.Task[dict[str, np.ndarray]]] = []
        for text in texts:
            if (vector := self._vectors.get(text)) is not None:
                found[text] = vector
                self.counts["hits"] += 1
            elif text in missing:
                self.counts["shared"] += 1
            elif task := self._in_progress.get(text):
                self.counts["shared"] += 1
                waiting.append(task)
            else:
                missing[text] = None
        if missing:
            task = asyncio.create_task(self._embed(list(missing)))
            self._in_progress.update(dict.fromkeys(missing, task))
            waiting.append(task)
        # Shielded: a caller that is cancelled must not cancel the embedding that others wait for.
        for vectors in await asyncio.gather(*map(asyncio.shield, waiting)):
            found |= vectors
        return [found[text] for text in texts]

    async def embed_each(self, texts: Sequence[str]) -> list[np.ndarray | Exception]:
        """Return the vector of each text, or why it has none: one that an endpoint refuses must not cost the others.

        Endpoints refuse a request as a whole for one text that is too long, so the texts are then embedded alone.

        Raises:
            EmbedderUnavailable: If the embedder is away: asking again for each would only take longer.
        """
        try:
            return [*await self.embed(texts)]
        except EmbedderUnavailable:
            raise
        except Exception as error:
            if len(texts) == 1:
                return [error]
        return await asyncio.gather(*map(self._embed_alone, texts))

    async def _embed_alone(self, text: str) -> np.ndarray | Exception:
        try:
            (vector,) = await self.embed([text])
        except Exception as error:
            return error
        return vector

    async def _embed(self, texts: list[str]) -> dict[str, np.ndarray]:
        try:
            self.counts["embedded"] += len(texts)
            vectors = dict(zip(texts, await self._compute(texts), strict=True))
            self._vectors.update((text, vector) for text, vector in vectors.items() if is_usable(vector))
            return vectors
        finally:
            for text in texts:
                del self._in_progress[text]


def is_usable(vector: np.ndarray) -> bool:
    """Return whether a vector is finite and not zero, so that it has a direction."""
    return bool(np.isfinite(vector).all() and vector.any())
