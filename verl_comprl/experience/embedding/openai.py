"""Embedder that calls an OpenAI-compatible endpoint: vLLM, TEI, Ollama, OpenAI.

Owns the requests and the checks of their answers. Retries, with backoff and Retry-After, are the client library's.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from openai import APIConnectionError, AsyncOpenAI, OpenAIError

from verl_comprl.experience.busy import BUSY
from verl_comprl.experience.embedding.errors import EmbedderUnavailable
from verl_comprl.openai_client import open_client, reason

_SHOWN = 200
"""Characters of an unusable answer that its error shows."""


class OpenAIEmbedder:
    """Vectors from ``POST <url>/embeddings``, L2-normalised here because not every endpoint does it.

    An endpoint does not tell which weights it serves. The identity holds the model's name instead, so the endpoint must
    not serve other weights under the same name later.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        dimension: int,
        *,
        query_prompt: str,
        document_prompt: str,
        batch_size: int,
        max_in_flight: int,
    ) -> None:
        """Use ``create``."""
        self._client = client
        self._model = model
        self._prompts = query_prompt, document_prompt
        self._batch_size = batch_size
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self.dimension = dimension
        self.identity: dict[str, Any] = {
            "model": model,
            "dimension": dimension,
            "query_prompt": query_prompt,
            "document_prompt": document_prompt,
        }

    @classmethod
    async def create(
        cls,
        url: str,
        model: str,
        *,
        query_prompt: str = "",
        document_prompt: str = "",
        batch_size: int = 32,
        timeout: float = 30.0,
        max_in_flight: int = 8,
    ) -> Self:
        """Connect, and request one vector to learn the dimension.

        Args:
            url: Up to and with the version: ``http://127.0.0.1:8000/v1``. The key is taken from the environment
                variable ``OPENAI_API_KEY``.
            model: Name of the model at the endpoint.
            query_prompt: Put before every query; the model's card says which.
            document_prompt: Put before every entry, likewise.
            batch_size: Texts per request.
            timeout: Seconds for one request, all of its answer included; failed ones are tried twice more.
            max_in_flight: Requests at the same time.

        Raises:
            EmbedderUnavailable: If the endpoint cannot be reached, or takes no requests.
            ValueError: If it does not return a vector.
        """
        client = open_client(url, os.environ.get("OPENAI_API_KEY"), timeout=timeout)
        embedder = cls(
            client,
            model,
            0,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            batch_size=batch_size,
            max_in_flight=max_in_flight,
        )
        try:
            embedder.dimension = (await embedder._request(["dimension"])).shape[1]
        except (EmbedderUnavailable, OpenAIError, ValueError) as error:
            await client.close()
            kind = EmbedderUnavailable if isinstance(error, EmbedderUnavailable) else ValueError
            raise kind(f"embedding endpoint {url!r} with model {model!r}: {reason(error)}") from error
        embedder.identity["dimension"] = embedder.dimension
        return embedder

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, shape ``(len(texts), dimension)`` float32.

        Raises:
            EmbedderUnavailable: If the endpoint cannot be reached, or takes no requests.
            openai.OpenAIError: If it refuses the request.
            ValueError: If its answer cannot be used.
        """
        return await self._embed(self._prompts[0], texts)

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of entries; see ``embed_queries``."""
        return await self._embed(self._prompts[1], texts)

    async def _embed(self, prompt: str, texts: Sequence[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        prompted = [prompt + text for text in texts]
        batches = [prompted[start : start + self._batch_size] for start in range(0, len(texts), self._batch_size)]
        vectors = np.concatenate(await asyncio.gather(*map(self._request, batches)))
        if vectors.shape[1] != self.dimension:
            raise ValueError(f"the endpoint returned {vectors.shape[1]} dimensions, earlier {self.dimension}")
        return vectors

    async def _request(self, texts: list[str]) -> np.ndarray:
        async with self._in_flight:
            try:
                answer = await self._client.embeddings.create(input=texts, model=self._model, encoding_format="float")
            except OpenAIError as error:
                # Also one that is late: texts are short, and an endpoint that hangs answers none.
                if isinstance(error, APIConnectionError) or getattr(error, "status_code", None) in BUSY:
                    raise EmbedderUnavailable(f"{self._client.base_url}: {error}") from error
                raise
            except (ValueError, RecursionError, OverflowError) as error:
                raise ValueError(f"the endpoint's answer cannot be read: {error}") from error
        indices, vectors = _vectors(answer)
        if indices != list(range(len(texts))):
            raise ValueError(
                f"the endpoint returned {len(indices)} vectors for {len(texts)} texts, or with wrong indices"
            )
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(norms).all() and norms.all()):
            raise ValueError("the endpoint returned a vector that is zero or not finite")
        return vectors / norms


def _vectors(answer: Any) -> tuple[list[Any], np.ndarray]:
    """Return the indices of an answer's vectors, which give the order, and the vectors, sorted by them.

    Raises:
        ValueError: If it has none: the client makes objects of any JSON, and returns what is not called JSON as text.
    """
    try:
        rows = sorted(answer.data, key=lambda row: row.index)
        vectors = np.array([row.embedding for row in rows], dtype=np.float32)
        if rows and vectors.ndim != 2:
            raise ValueError(f"they have {vectors.ndim} dimensions")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the endpoint's answer has no vectors: {str(answer)[:_SHOWN]}") from error
    return [row.index for row in rows], vectors
