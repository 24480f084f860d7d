"""Measures the latency of query embeddings with and without the cache.

A group of K=8 rollouts asks the same query at the same time. Each row is the median over ``--rounds`` rounds with new
texts; the last column is the ratio to one query.

    python -m benchmarks.embedding [--model builtin] [--url URL] [--rounds 30] [--json]
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from verl_comprl.experience import make_embedder
from verl_comprl.experience.embedding.vector_cache import VectorCache

GROUP = 8
QUERY = "room {}: the stairs down are behind a locked door, a trap lies before it, and a jackal follows me"


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per request pattern."""
    embedder = await make_embedder(options.model, url=options.url)
    cache = VectorCache(embedder.embed_queries)
    numbers = itertools.count()

    def fresh(count: int) -> list[str]:
        return [QUERY.format(next(numbers)) for _ in range(count)]

    async def one() -> None:
        await cache.embed(fresh(1))

    async def distinct() -> None:
        await asyncio.gather(*(cache.embed([text]) for text in fresh(GROUP)))

    async def batch() -> None:
        await cache.embed(fresh(GROUP))

    async def identical() -> None:
        (text,) = fresh(1)
        await asyncio.gather(*(cache.embed([text]) for _ in range(GROUP)))

    known = fresh(1)

    async def cached() -> None:
        await cache.embed(known)

    async def row(name: str, queries: int, ask: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        await ask()  # warm up
        before, times = cache.counts["embedded"], []
        for _ in range(options.rounds):
            started = time.perf_counter()
            await ask()
            times.append(1000 * (time.perf_counter() - started))
        low, median, high = statistics.quantiles(times, n=4)
        embedded = (cache.counts["embedded"] - before) / options.rounds
        return {"ask": name, "queries": queries, "embedded": embedded, "median_ms": median, "iqr_ms": high - low}

    return [
        await row("one query", 1, one),
        await row("8 distinct, one call each", GROUP, distinct),
        await row("8 distinct, one call", GROUP, batch),
        await row("8 identical, at the same time", GROUP, identical),
        await row("a known query", 1, cached),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Latency of query embeddings with and without the cache.")
    parser.add_argument("--model", default="builtin", help="sentence-transformers model (default: builtin)")
    parser.add_argument("--url", default="", help="OpenAI-compatible endpoint that serves the model")
    parser.add_argument("--rounds", type=int, default=30, help="rounds per row (default: 30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    if options.json:
        print(json.dumps({"embedding": rows}))
        return
    print(f"{'':<32}{'queries':>8}{'embedded':>10}{'median ms':>11}{'IQR ms':>9}{'ratio':>8}")
    for row in rows:
        ratio = row["median_ms"] / rows[0]["median_ms"]
        print(
            f"{row['ask']:<32}{row['queries']:>8}{row['embedded']:>10.1f}{row['median_ms']:>11.3f}"
            f"{row['iqr_ms']:>9.3f}{ratio:>8.3f}"
        )


if __name__ == "__main__":
    main()
