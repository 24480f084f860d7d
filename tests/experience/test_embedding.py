"""Caching of query vectors, and the embedder that works without a network."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.experience import SentenceTransformerEmbedder
from verl_comprl.experience.embedding import CachedQueries, embedding_difference


class SlowEmbedder(FakeEmbedder):
    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        await asyncio.sleep(0.01)
        return await super().embed_queries(texts)


async def test_concurrent_identical_queries_cost_one_embedding() -> None:
    embedder = SlowEmbedder()
    cache = CachedQueries(embedder)
    results = await asyncio.gather(*(cache.embed(["a", f"b{n % 2}", "a"]) for n in range(8)))
    assert embedder.query_calls == [["a", "b0"], ["b1"]]
    expected = await FakeEmbedder().embed_queries(["a", "b1", "a"])
    assert np.array_equal(results[1], expected)


async def test_an_impatient_caller_does_not_take_the_vector_from_the_others() -> None:
    embedder = SlowEmbedder()
    cache = CachedQueries(embedder)
    impatient = asyncio.create_task(cache.embed(["a"]))
    patient = asyncio.create_task(cache.embed(["a"]))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).shape == (1, 64)
    assert embedder.query_calls == [["a"]]


async def test_failures_are_shared_but_not_remembered() -> None:
    embedder = SlowEmbedder()
    embedder.failure = ConnectionError("gone")
    cache = CachedQueries(embedder)
    results = await asyncio.gather(cache.embed(["a"]), cache.embed(["a"]), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] * 2
    embedder.failure = None
    await cache.embed(["a"])
    assert embedder.query_calls == [["a"], ["a"]]


async def test_a_batch_larger_than_the_cache() -> None:
    embedder = FakeEmbedder()
    cache = CachedQueries(embedder, size=2)
    texts = [f"text {n}" for n in range(10)]
    assert np.array_equal(await cache.embed(texts), await FakeEmbedder().embed_queries(texts))


def test_embedding_difference_names_what_differs() -> None:
    assert embedding_difference({"model": "a", "dimension": 2}, {"model": "a", "dimension": 2}) is None
    assert embedding_difference({"model": "a"}, {"model": "b"}) == "model was 'a', is 'b'"


@pytest.mark.slow
async def test_builtin_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = SentenceTransformerEmbedder("builtin", device="cpu")
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
