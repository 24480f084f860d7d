"""A process that computes at idle priority and has nothing to do with a run.

It takes all that a run leaves over of one core, which is more than an extractor does. So what it slows a run by is no
cost of the method.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 512
"""Of the matrices, three of which are 3 MiB: about as much as the miniature's models."""


@contextmanager
def burden() -> Iterator[subprocess.Popen[bytes]]:
    """Let the process compute, on one core at most, from the first product on.

    Raises:
        RuntimeError: If it ends by itself, so that nothing was a burden.
    """
    with subprocess.Popen([sys.executable, "-m", "benchmarks.burden"], stdout=subprocess.PIPE) as process:
        try:
            _check(process.stdout is not None and process.stdout.readline())
            yield process
            _check(process.poll() is None)
        finally:
            process.kill()


def _check(computes: object) -> None:
    if not computes:
        raise RuntimeError("the process that is to be a burden has ended")


def main() -> None:
    """Compute until killed."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    import torch

    torch.set_num_threads(1)
    left, right = torch.randn(2, SIZE, SIZE)
    print(torch.tanh(left @ right).sum().item(), flush=True)
    while True:
        left = torch.tanh(left @ right)


if __name__ == "__main__":
    main()
