"""Placeholder embedder for a bank that is opened without one."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class NoEmbedder:
    """Has the identity of the embedder that made a bank's vectors, and refuses to embed."""

    def __init__(self, identity: dict[str, Any]) -> None:
        """Take the identity that the bank was built with."""
        self.identity = identity
        self.dimension: int = identity["dimension"]

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Refuse any text; see ``embed_documents``."""
        return await self.embed_documents(texts)

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Refuse any text.

        Raises:
            RuntimeError: If there is any text.
        """
        if texts:
            raise RuntimeError(f"the bank was opened without an embedder; it was built with {self.identity}")
        return np.zeros((0, self.dimension), np.float32)
