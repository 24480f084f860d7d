"""The cache of vectors: one embedding per text, shared by concurrent callers."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.experience.embedding.vector_cache import VectorCache


class SlowEmbedder(FakeEmbedder):
    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        await asyncio.sleep(0.01)
        return await super().embed_queries(texts)


async def test_concurrent_identical_queries_cost_one_embedding() -> None:
    embedder = SlowEmbedder()
    cache = VectorCache(embedder.embed_queries)
    results = await asyncio.gather(*(cache.embed(["a", f"b{n % 2}", "a"]) for n in range(8)))
    assert embedder.query_calls == [["a", "b0"], ["b1"]]
    expected = await FakeEmbedder().embed_queries(["a", "b1", "a"])
    assert np.array_equal(results[1], expected)


async def test_a_cancelled_caller_does_not_cancel_the_embedding_for_others() -> None:
    embedder = SlowEmbedder()
    cache = VectorCache(embedder.embed_queries)
    cancelled = asyncio.create_task(cache.embed(["a"]))
    other = asyncio.create_task(cache.embed(["a"]))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert np.shape(await other) == (1, 64)
    assert embedder.query_calls == [["a"]]


async def test_failures_are_shared_but_not_remembered() -> None:
    embedder = SlowEmbedder()
    embedder.failure = ConnectionError("gone")
    cache = VectorCache(embedder.embed_queries)
    results = await asyncio.gather(cache.embed(["a"]), cache.embed(["a"]), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] * 2
    embedder.failure = None
    await cache.embed(["a"])
    assert embedder.query_calls == [["a"], ["a"]]


async def test_a_batch_larger_than_the_cache() -> None:
    embedder = FakeEmbedder()
    cache = VectorCache(embedder.embed_queries, size=2)
    texts = [f"text {n}" for n in range(10)]
    assert np.array_equal(await cache.embed(texts), await FakeEmbedder().embed_queries(texts))


async def test_counts_of_embedded_shared_and_cached_texts() -> None:
    embedder = SlowEmbedder()
    cache = VectorCache(embedder.embed_queries)
    await asyncio.gather(*(cache.embed(["a"]) for _ in range(8)))
    assert cache.counts == {"embedded": 1, "shared": 7, "hits": 0}
    await cache.embed(["a", "b", "b"])
    assert cache.counts == {"embedded": 2, "shared": 8, "hits": 1}


async def test_a_cached_vector_is_returned_without_waiting() -> None:
    cache = VectorCache(FakeEmbedder().embed_queries)
    await cache.embed(["a"])
    step = cache.embed(["a"])
    try:
        step.send(None)
    except StopIteration as done:
        assert np.array_equal(done.value, await FakeEmbedder().embed_queries(["a"]))
    else:
        raise AssertionError("it waited")


async def test_two_calls_share_what_overlaps() -> None:
    embedder = SlowEmbedder()
    cache = VectorCache(embedder.embed_queries)
    first, second = await asyncio.gather(cache.embed(["a", "b"]), cache.embed(["b", "c", "a"]))
    assert embedder.query_calls == [["a", "b"], ["c"]]
    assert np.array_equal(first[0], second[2]) and np.array_equal(first[1], second[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
async def test_a_vector_that_cannot_be_used_is_asked_for_again(value: float) -> None:
    """One bad moment of the embedder must not last as long as the cache; what else came in that batch is kept."""
    embedder = FakeEmbedder()
    cache, vector = VectorCache(embedder.embed_queries), embedder._vector
    embedder._vector = lambda text: np.full(64, value, np.float32) if text == "a" else vector(text)
    await cache.embed(["a", "b"])
    embedder._vector = vector
    assert np.array_equal(await cache.embed(["a", "b"]), await FakeEmbedder().embed_queries(["a", "b"]))
    assert embedder.query_calls == [["a", "b"], ["a"]]
