"""Measures what a process on the other core costs, although it has idle priority and takes no core from anyone.

Both are pinned to a core of their own. What is left is what cores have in common: caches, memory and their clock.

    python -m benchmarks.cores [--rounds 9] [--seconds 1]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WORK = {
    "in registers": "a loop of Python",
    "in a core's cache": "products of matrices of 8 KiB",
    "in the shared cache": "products of matrices of 1 MiB",
    "in memory": "sums of vectors of 128 MiB",
}
"""Kinds of work, and what is computed."""


def work(kind: str) -> Callable[[], object]:
    """Return a function that does a piece of the work, a few milliseconds long, on one core."""
    import torch

    torch.set_num_threads(1)
    if kind == "in registers":
        return lambda: sum(range(200_000))
    if kind == "in memory":
        vector = torch.zeros(2**25)
        return lambda: vector.add_(1)
    size, times = (45, 400) if kind == "in a core's cache" else (512, 1)
    matrix, product = torch.rand(size, size), torch.empty(size, size)

    def multiply() -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=product)

    return multiply


@contextmanager
def neighbour(kind: str, core: int) -> Iterator[None]:
    """Let a process do such work at idle priority on a core; it has begun."""
    command = [sys.executable, "-m", "benchmarks.cores", "--neighbour", kind, "--core", str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if not (process.stdout and process.stdout.readline()):
                raise RuntimeError("the neighbour has ended")
            yield
        finally:
            process.kill()


def _be_neighbour(kind: str, core: int) -> None:
    os.sched_setaffinity(0, {core})
    piece = work(kind)
    piece()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # not before: on busy cores it might never begin
    print("begun", flush=True)
    while True:
        piece()


def rate(piece: Callable[[], object], seconds: float) -> float:
    """Return how many pieces of work are done in a second."""
    started, done = time.perf_counter(), 0
    while (took := time.perf_counter() - started) < seconds:
        piece()
        done += 1
    return done / took


def measure(rounds: int, seconds: float, cores: list[int]) -> dict[tuple[str, str], list[float]]:
    """Return the ratios of the time for a piece of work beside a neighbour to that without, one for each round.

    Args:
        rounds: Each measures both, one right after the other, since the speed of cores varies.
        seconds: Of each measurement.
        cores: The measured process's, and the neighbour's.

    Returns:
        Ratios by the own kind of work, and the neighbour's.
    """
    os.sched_setaffinity(0, cores[:1])
    ratios: dict[tuple[str, str], list[float]] = {}
    for own in WORK:
        rate(piece := work(own), seconds)
        for _ in range(rounds):
            for other in WORK:
                alone = rate(piece, seconds)
                with neighbour(other, cores[1]):
                    beside = rate(piece, seconds)
                ratios.setdefault((own, other), []).append(alone / beside)
    return ratios


def table(ratios: dict[tuple[str, str], list[float]]) -> str:
    """Return a Markdown table: the median of the rounds, and the middle half of them."""
    lines = ["| computes | beside one " + " | beside one ".join(WORK) + " |", "|---" * (len(WORK) + 1) + "|"]
    for own in WORK:
        cells = []
        for other in WORK:
            low, middle, high = statistics.quantiles(ratios[own, other], n=4, method="inclusive")
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {own} ({WORK[own]}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--neighbour", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.neighbour:
        _be_neighbour(arguments.neighbour, arguments.core)
    if arguments.rounds < 2:
        parser.error("--rounds has to be 2 or more: one ratio shows no spread")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("one core has no neighbour; this needs two")
    print(table(measure(arguments.rounds, arguments.seconds, cores[:2])))


if __name__ == "__main__":
    main()
