"""Cached build of a recipe's actor and extractor: trains both once and keeps them until a source file changes.

Owns the cache and the two training processes; the examples are the recipe's.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl_comprl.display.quiet import quiet_libraries

STAMP = "prepared.json"
SOURCES = (
    "recipes/tiny_models",
    "verl_comprl/extractor/prompts",
    "verl_comprl/rollout/messages.py",
    "verl_comprl/rollout/tool_schema.py",
)
"""What every recipe's models depend on."""

Step = Callable[[Path], None]
"""Makes or reads files in the folder of the models."""


def fingerprint(sources: Sequence[str]) -> str:
    """Return a hash of ``SOURCES`` and a recipe's own source files, relative to the repository."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for source in (*SOURCES, *sources):
        for path in sorted((root / source).rglob("*")) or [root / source]:
            if path.suffix in (".py", ".txt"):
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(output: Path, *, sources: Sequence[str], tokenizer: Step, actor: Step, extractor: Step) -> bool:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date.

    Args:
        output: Folder of the models.
        sources: Source files and folders that they depend on besides ``SOURCES``.
        tokenizer: Trains the tokenizer and writes it into the folder given; the other two find it in ``tokenizer``.
        actor: Writes ``actor``; a function of a module, since it runs in a process of its own.
        extractor: Writes ``extractor``, at the same time.

    Returns:
        Whether they were built now.
    """
    wanted = fingerprint(sources)
    stamp = output / STAMP
    if stamp.exists() and json.loads(stamp.read_text())["fingerprint"] == wanted:
        print(f"Models: prepared already, in {output}")
        return False
    quiet_libraries()  # before they are imported; the two processes below inherit the settings
    started = time.perf_counter()
    print("Models: building two small ones, actor and extractor (once, 2 to 4 minutes)", flush=True)
    print("  playing scripted example episodes …", flush=True)
    temporary = output.with_name(f"{output.name}.part-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tokenizer(temporary / "tokenizer")
    print("  training both models on the examples …", flush=True)
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(temporary,)) for train in (actor, extractor)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"error: building the models failed, see above; intermediate files are in {temporary}")
    shutil.rmtree(temporary / "tokenizer")
    (temporary / STAMP).write_text(json.dumps({"fingerprint": wanted}))
    shutil.rmtree(output, ignore_errors=True)
    temporary.rename(output)
    print(f"  both models are ready after {time.perf_counter() - started:.0f} s, in {output}", flush=True)
    return True


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
