"""Differences between embedders, and the built-in model."""

import numpy as np
import pytest

from verl_comprl.experience import SentenceTransformerEmbedder
from verl_comprl.experience.embedding.base import embedding_difference, make_embedder


def test_embedding_difference_names_what_differs() -> None:
    assert embedding_difference({"model": "a", "dimension": 2}, {"model": "a", "dimension": 2}) is None
    assert embedding_difference({"model": "a"}, {"model": "b"}) == "model was 'a', is 'b'"


@pytest.mark.slow
async def test_builtin_model(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = SentenceTransformerEmbedder("builtin", device="cpu")
    assert capfd.readouterr().err == ""  # no progress bar in what a command prints
    assert embedder.dimension == 384
    assert embedder.identity["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert embedder.identity["max_tokens"] == 256
    documents = await embedder.embed_documents(
        ["Find the key first, then open the locked door.", "Compare prices before buying shoes.", "word " * 5000]
    )
    (query,) = await embedder.embed_queries(["How do I get through a door that is locked?"])
    assert documents.shape == (3, 384) and documents.dtype == np.float32
    assert np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert (documents @ query).argmax() == 0
    assert (await embedder.embed_documents([])).shape == (0, 384)
    # Cut at the limit: what comes after it does not count.
    ending = await embedder.embed_documents(["word " * 5000 + "elephant"])
    assert np.allclose(documents[2], ending[0], atol=1e-5)


@pytest.mark.slow
async def test_prompts_are_prepended_and_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = SentenceTransformerEmbedder("builtin", device="cpu")
    prompted = await make_embedder("builtin", device="cpu", query_prompt="find: ", document_prompt="lesson: ")
    assert np.allclose(await prompted.embed_queries(["a door"]), await plain.embed_queries(["find: a door"]), atol=1e-6)
    assert np.allclose(
        await prompted.embed_documents(["a door"]), await plain.embed_documents(["lesson: a door"]), atol=1e-6
    )
    difference = embedding_difference(plain.identity, prompted.identity)
    assert difference == "query_prompt was '', is 'find: ', document_prompt was '', is 'lesson: '"
