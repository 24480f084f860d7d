"""Python's garbage collector in processes that live as long as a run and must answer quickly."""

import gc


def relieve_garbage_collector() -> None:
    """Exempt what is in memory now from garbage collection, and collect less often.

    Scanning a bank of 20,000 entries takes 100 ms (``benchmarks/retrieval.py``), scanning the libraries that a rollout
    worker has loaded 600 ms. Nothing else in the process goes on meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
