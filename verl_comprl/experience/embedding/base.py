"""Embedder interface, and the choice of an embedder from the settings.

Owns the interface and the comparison of identities. The embedders are in ``sentence_transformer``, ``openai`` and
``none``.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from verl_comprl.display.first_line import first_line
from verl_comprl.experience.config import EmbedderConfig
from verl_comprl.experience.schema import Experience
from verl_comprl.requirements import describe_missing

_SHOWN = 1000
"""Characters of how two identities differ."""


class Embedder(Protocol):
    """Turns texts into L2-normalised vectors. Queries and documents may be encoded differently."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Description of the embedder as JSON: two embedders with equal identities give the same vectors.

        ``model``, if it is there, is a text.
        """
        ...

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, shape ``(len(texts), dimension)`` float32."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of entries, shape ``(len(texts), dimension)`` float32."""
        ...


async def make_embedder(model: str | Path = "builtin", **settings: Any) -> Embedder:
    """Return the embedder that the settings ``comprl.embedder`` describe.

    Args:
        model: A sentence-transformers model, a folder of one, ``"builtin"``; with ``url`` the endpoint's name of it.
        **settings: The other fields of ``EmbedderConfig``.

    Raises:
        ValueError: If a setting is not allowed, the endpoint gives no vector, or the model cannot be loaded.
        EmbedderUnavailable: If the endpoint cannot be reached, or takes no requests.
        OSError: If the model is not found.
        ImportError: If the extra ``embed`` is not installed; names the command that installs it.
    """
    values: dict[str, Any] = {"model": model, **settings}
    config = EmbedderConfig(**values)
    try:
        embedder = await _load(config)
    except ModuleNotFoundError as error:
        raise ImportError(describe_missing(error), name=error.name) from error
    if config.documents != "text":  # identities of banks that were made before this setting have no such key
        embedder.identity["documents"] = config.documents
    return embedder


async def _load(config: EmbedderConfig) -> Embedder:
    if config.url:
        from verl_comprl.experience.embedding.openai import OpenAIEmbedder

        return await OpenAIEmbedder.create(
            config.url,
            config.model,
            query_prompt=config.query_prompt or "",
            document_prompt=config.document_prompt or "",
            batch_size=config.batch_size,
            timeout=config.timeout,
        )
    from verl_comprl.experience.embedding.sentence_transformer import SentenceTransformerEmbedder

    prompts = {"query_prompt": config.query_prompt, "document_prompt": config.document_prompt}
    load = partial(SentenceTransformerEmbedder, config.model, config.device, config.batch_size, **prompts)
    try:
        return await asyncio.to_thread(load)
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:  # the libraries read a model's files unchecked
        raise ValueError(f"{type(error).__name__} while the model was loaded: {first_line(error)}") from error


def document(entry: Experience, identity: Mapping[str, Any]) -> str:
    """Return what of an entry an embedder of this identity embeds, see ``EmbedderConfig.documents``."""
    return entry.title if entry.title and identity.get("documents") == "title" else entry.text


def is_identity(identity: Any) -> bool:
    """Return whether this can be an embedder's identity: an object whose model, if it names one, is a text."""
    return isinstance(identity, dict) and isinstance(identity.get("model", ""), str)


def embedding_difference(stored: dict[str, Any], current: dict[str, Any]) -> str | None:
    """Return a description of how two embedder identities differ, or None if they are equal."""
    stored, current = ({"documents": "text", **identity} for identity in (stored, current))  # left out by make_embedder
    keys = [key for key in stored | current if stored.get(key) != current.get(key)]
    # Keys and values may be somebody else's, and this is printed.
    shown = ((repr(key)[1:-1], stored.get(key), current.get(key)) for key in keys)
    return ", ".join(f"{key} was {old!r}, is {new!r}" for key, old, new in shown)[:_SHOWN] or None
