"""Micro-batches of queries: sizes, failures, cancellation."""

import asyncio

import pytest

from verl_comprl.experience.retrieval.batching import MicroBatcher


async def test_batches_by_size_and_by_time() -> None:
    sizes: list[int] = []

    async def run(queries: list[int]) -> list[int]:
        sizes.append(len(queries))
        return [query * 10 for query in queries]

    batcher = MicroBatcher(run, max_batch=4, max_wait_ms=5)
    assert await asyncio.gather(*map(batcher.submit, range(10))) == [query * 10 for query in range(10)]
    assert sizes == [4, 4, 2]
    assert await batcher.submit(7) == 70


async def test_a_failure_reaches_its_batch_only_and_a_cancelled_query_is_not_run() -> None:
    seen: list[int] = []

    async def run(queries: list[int]) -> list[int]:
        seen.extend(queries)
        if 1 in queries:
            raise ValueError("one")
        return queries

    batcher = MicroBatcher(run, max_batch=2, max_wait_ms=5)
    results = await asyncio.gather(*map(batcher.submit, range(4)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError, int, int]

    cancelled = asyncio.create_task(batcher.submit(8))
    await asyncio.sleep(0)
    cancelled.cancel()
    await batcher.drain()
    assert cancelled.cancelled() and 8 not in seen


async def test_a_missing_result_is_an_error_and_not_a_hang() -> None:
    async def run(queries: list[int]) -> list[int]:
        return queries[:-1]

    batcher = MicroBatcher(run, max_batch=2)
    results = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert results[0] == 1 and isinstance(results[1], ValueError)
    with pytest.raises(ValueError, match="argument"):
        await batcher.submit(3)
