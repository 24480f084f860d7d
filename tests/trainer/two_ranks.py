"""Two processes of a test, as the ranks of an engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imported_once import forked


@contextmanager
def two_ranks(run: Callable[[int, str, Any], None], folder: Path) -> Iterator[list[Any]]:
    """Let both run with their rank, a file by which they find each other, and a pipe; gives our ends of the pipes."""
    context = forked()
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(rank, str(folder / "ranks"), theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield pipes
    finally:
        for process in processes:
            process.join(10)
            process.kill()
