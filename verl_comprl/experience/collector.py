"""Python's garbage collector beside a large bank: what lives as long as the process need not be looked at again."""

import gc


def spare_collector() -> None:
    """Take what is there now out of collection and collect less often; for a process that mostly serves a bank.

    A look at 20,000 entries takes 100 ms, in which nobody gets an answer (``benchmarks/retrieval.py``). Call it after a
    bank was opened or restored.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
