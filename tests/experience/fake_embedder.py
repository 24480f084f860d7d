"""Embedder for tests: a hashed bag of words, so that texts that share words are similar. Records its query calls."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np


class FakeEmbedder:
    """Deterministic in every process; ``failure`` is raised while it is set."""

    dimension = 64

    def __init__(self, model: str = "fake") -> None:
        self.identity: dict[str, Any] = {"model": model, "dimension": self.dimension}
        self.query_calls: list[list[str]] = []
        self.failure: Exception | None = None

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.query_calls.append(list(texts))
        return await self.embed_documents(texts)

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        if self.failure is not None:
            raise self.failure
        return np.stack([self._vector(text) for text in texts]) if texts else np.zeros((0, self.dimension), np.float32)

    def _vector(self, text: str) -> np.ndarray:
        vector = np.full(self.dimension, 1e-3)
        for word in text.lower().split():
            digest = hashlib.sha256(word.encode()).digest()
            vector[digest[0] % self.dimension] += 1 if digest[1] % 2 else -1
        return (vector / np.linalg.norm(vector)).astype(np.float32)
