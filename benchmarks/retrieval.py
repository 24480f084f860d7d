"""Measures the latency of retrievals and additions by size of the bank and number of concurrent clients (askers).

Every client sends its next query as soon as it has an answer. ``groups`` is the workload of a run: the K=8 rollouts of
a prompt send the same query. ``distinct`` is the worst case: no two clients send the same query. No query is repeated
later, so caches do not help. Vectors are precomputed, with 384 dimensions and clusters as in text; the last table
embeds with the built-in model instead.

    python -m benchmarks.retrieval [--sizes 1000 20000 100000] [--askers 1 128 1024] [--seconds 10] [--json]
"""

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_comprl.experience import Add, BankConfig, Embedder, Experience, ExperienceBank, derive_id
from verl_comprl.experience.transfer.snapshot import write_snapshot

GROUP = 8
DIMENSION = 384
QUERIES = 8192
ADDITIONS = 300
EMBEDDED_ENTRIES = 20_000
"""In the bank whose queries are embedded."""
CALL = {"listed": (), "task": "task", "environment": "environment", "step": 0, "weight_version": 0}
TARGETS = (
    "p99 at most 100 ms for 1024 askers and 20000 entries; at least 2000/s at 20000; an addition at 100000 at most 1.5 "
    "times one at 1000"
)


class PrecomputedEmbedder:
    """Embedder without cost: each text is the index of a given vector."""

    dimension = DIMENSION

    def __init__(self, vectors: np.ndarray) -> None:
        """Take vectors of shape ``(count, dimension)``."""
        self.identity: dict[str, Any] = {"model": "precomputed", "dimension": DIMENSION}
        self._vectors = vectors

    async def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Look the vectors up."""
        return self._vectors[[int(text) % len(self._vectors) for text in texts]]

    async def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Look the vectors up by the title, which is the first line."""
        return await self.embed_queries([text.partition("\n")[0] for text in texts])


def clustered(count: int, seed: int) -> np.ndarray:
    """Return normalised vectors, shape ``(count, DIMENSION)``, in clusters of about 20."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(1000, DIMENSION))
    vectors = centres[random.integers(0, len(centres), count)] + 0.6 * random.normal(size=(count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


async def filled_bank(folder: Path, size: int, embedder: Embedder) -> ExperienceBank:
    """Return a bank of ``size`` entries."""
    entries = [
        Experience(
            id=derive_id("benchmark", n),
            title=f"lesson {n}",
            content=f"lesson number {n}: look before you leap, and keep the door in sight",
            tasks=(f"task{n % 6}",),
            record_id=derive_id("record", n),
            created_at=float(n),
        )
        for n in range(size)
    ]
    write_snapshot(folder / "snapshot", entries, clustered(size, seed=1), embedder.identity)
    bank = await ExperienceBank.open(BankConfig(path=str(folder / "bank"), capacity=2 * size), embedder)
    await bank.restore(folder / "snapshot")
    gc.collect()
    gc.freeze()  # as a run's manager does
    return bank


async def ask(bank: ExperienceBank, askers: int, group: int, seconds: float, phrase: str) -> dict[str, float]:
    """Let ``askers`` clients send queries for ``seconds``; return p50 and p99 in ms, and queries per second."""
    latencies: list[float] = []
    started = time.perf_counter()

    async def keep_asking(asker: int) -> None:
        for turn in itertools.count():
            if time.perf_counter() - started > seconds:
                return
            answer = await bank.retrieve(phrase.format(turn * askers + asker // group))
            assert answer.status == "found", answer
            latencies.append(1000 * answer.seconds)

    await asyncio.gather(*map(keep_asking, range(askers)))
    elapsed = time.perf_counter() - started
    return {
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "per_second": len(latencies) / elapsed,
    }


async def add(bank: ExperienceBank) -> dict[str, float]:
    """Return the median time of one addition in ms and its interquartile range."""
    times = []
    for n in range(ADDITIONS):
        started = time.perf_counter()
        await bank.apply([Add(title=str(n), content="a new lesson")], call_id=derive_id("addition", n), **CALL)
        times.append(1000 * (time.perf_counter() - started))
    low, median, high = statistics.quantiles(times, n=4)
    return {"median_ms": median, "iqr_ms": high - low}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all rows."""
    precomputed = PrecomputedEmbedder(clustered(QUERIES, seed=2))
    rows: dict[str, Any] = {"retrievals": [], "additions": [], "with_embedding": []}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            bank = await filled_bank(Path(folder), size, precomputed)
            await ask(bank, 128, 1, 0.5, "{}")  # warm up
            for askers, group in itertools.product(options.askers, (GROUP, 1)):
                if askers >= group:
                    row = await ask(bank, askers, group, options.seconds, "{}")
                    workload = "groups" if group > 1 else "distinct"
                    rows["retrievals"].append({"entries": size, "askers": askers, "workload": workload, **row})
            rows["additions"].append({"entries": size, **await add(bank)})
            await bank.close()
    if not options.no_embedding:
        from verl_comprl.experience import SentenceTransformerEmbedder

        embedder = SentenceTransformerEmbedder("builtin")
        with tempfile.TemporaryDirectory() as folder:
            bank = await filled_bank(Path(folder), EMBEDDED_ENTRIES, embedder)
            for askers in options.askers:
                group = min(GROUP, askers)
                row = await ask(bank, askers, group, options.seconds, "room {}: find the stairs down, mind the trap")
                workload = "groups" if group > 1 else "distinct"
                rows["with_embedding"].append(
                    {"entries": EMBEDDED_ENTRIES, "askers": askers, "workload": workload, **row}
                )
            await bank.close()
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Latency of retrievals and additions.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 20_000, 100_000], help="numbers of entries")
    parser.add_argument("--askers", type=int, nargs="+", default=[1, 128, 1024], help="numbers of concurrent clients")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each row (default: 10)")
    parser.add_argument("--no-embedding", action="store_true", help="skip the table with the built-in embedder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(rows))
        return
    for title, part in (("vectors precomputed", "retrievals"), ("embedded with the built-in model", "with_embedding")):
        if rows[part]:
            print(f"\nretrievals, {title}")
            print(f"{'entries':>8}{'askers':>8}  {'workload':<10}{'p50 ms':>9}{'p99 ms':>9}{'per s':>9}")
        for row in rows[part]:
            print(
                f"{row['entries']:>8}{row['askers']:>8}  {row['workload']:<10}"
                f"{row['p50_ms']:>9.1f}{row['p99_ms']:>9.1f}{row['per_second']:>9.0f}"
            )
    print(f"\none addition\n{'entries':>8}{'median ms':>11}{'IQR ms':>9}{'ratio':>8}")
    for row in rows["additions"]:
        ratio = row["median_ms"] / rows["additions"][0]["median_ms"]
        print(f"{row['entries']:>8}{row['median_ms']:>11.2f}{row['iqr_ms']:>9.2f}{ratio:>8.2f}")
    print(f"\ntargets: {TARGETS}")


if __name__ == "__main__":
    main()
