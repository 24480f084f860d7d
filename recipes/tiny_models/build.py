"""Cached build of a recipe's actor and extractor: trains both once and keeps them until a source file changes.

Owns the two training processes; the cache is in ``cache``, the examples are the recipe's.
"""

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.tiny_models.cache import cached
from verl_comprl.display.quiet import quiet_libraries

Step = Callable[[Path], None]
"""Makes or reads files in the folder of the models."""


def build(output: Path, *, sources: Sequence[str], tokenizer: Step, actor: Step, extractor: Step) -> bool:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date.

    Args:
        output: Folder of the models.
        sources: Source files and folders that they depend on, as for ``cached``.
        tokenizer: Trains the tokenizer and writes it into the folder given; the other two find it in ``tokenizer``.
        actor: Writes ``actor``; a function of a module, since it runs in a process of its own.
        extractor: Writes ``extractor``, at the same time.

    Returns:
        Whether they were built now.
    """
    started = time.perf_counter()
    built = cached(output, sources, lambda folder: _train(folder, tokenizer, actor, extractor), "Models")
    if built:
        print(f"  both models are ready after {time.perf_counter() - started:.0f} s, in {output}", flush=True)
    return built


def _train(folder: Path, tokenizer: Step, actor: Step, extractor: Step) -> None:
    quiet_libraries()  # before they are imported; the two processes below inherit the settings
    print("Models: building two small ones, actor and extractor (once, some minutes)", flush=True)
    print("  playing scripted example episodes …", flush=True)
    folder.mkdir(parents=True)
    tokenizer(folder / "tokenizer")
    print("  training both models on the examples …", flush=True)
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(folder,)) for train in (actor, extractor)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"error: building the models failed, see above; intermediate files are in {folder}")
    shutil.rmtree(folder / "tokenizer")


def save(model: Any, tokenizer: Any, folder: Path, loss: float) -> None:
    """Write a trained model, and print its loss."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"  {folder.name} trained (loss per token {loss:.2f})", flush=True)


def main(prepare: Callable[[Path], object], description: str) -> int:
    """Parse the command line of a recipe's ``prepare`` and run it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, required=True, help="folder for the models")
    prepare(parser.parse_args().output.resolve())
    return 0
