"""Embedder interface, and the choice of an embedder from the settings.

Owns the interface and the comparison of identities. The embedders are in ``sentence_transformer``, ``openai`` and
``none``.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np


class Embedder(Protocol):
    """Turns texts into L2-normalised vectors. Queries and documents may be encoded differently."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Description of the embedder as JSON: two embedders with equal identities give the same vectors."""
        ...

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, shape ``(len(texts), dimension)`` float32."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of entries, shape ``(len(texts), dimension)`` float32."""
        ...


async def make_embedder(
    model: str,
    *,
    url: str = "",
    device: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    batch_size: int = 32,
    timeout: float = 30.0,
) -> Embedder:
    """Return the embedder that the settings ``comprl.embedder`` describe.

    Args:
        model: A sentence-transformers model, a folder of one, ``"builtin"``; with ``url`` what the endpoint calls it.
        url: An OpenAI-compatible endpoint (``http://127.0.0.1:8000/v1``); "" runs the model in this process.
        device: Torch device of a model in this process; None chooses.
        query_prompt: Put before every query; None takes the model's own (an endpoint's: none).
        document_prompt: Likewise before every entry.
        batch_size: Texts per forward pass or request.
        timeout: Seconds for one request to the endpoint.

    Raises:
        ValueError: If the endpoint does not answer, or the model cannot be loaded.
        OSError: If the model is not found.
        ImportError: If the extra ``embed`` is not installed.
    """
    if url:
        from verl_comprl.experience.embedding.openai import OpenAIEmbedder

        return await OpenAIEmbedder.create(
            url,
            model,
            query_prompt=query_prompt or "",
            document_prompt=document_prompt or "",
            batch_size=batch_size,
            timeout=timeout,
        )
    from verl_comprl.experience.embedding.sentence_transformer import SentenceTransformerEmbedder

    prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
    return await asyncio.to_thread(partial(SentenceTransformerEmbedder, model, device, batch_size, **prompts))


def embedding_difference(stored: dict[str, Any], current: dict[str, Any]) -> str | None:
    """Return a description of how two embedder identities differ, or None if they are equal."""
    keys = [key for key in stored | current if stored.get(key) != current.get(key)]
    return ", ".join(f"{key} was {stored.get(key)!r}, is {current.get(key)!r}" for key in keys) or None
