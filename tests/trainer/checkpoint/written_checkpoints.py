"""Checkpoints as a run writes them, with small files, and what may become of them."""

import os
from pathlib import Path

import torch

from verl_comprl.trainer.checkpoint.folders import MARKER, CheckpointFolders

PARTS = ("actor", "data.pt", "comprl/bank")


def fill(folder: Path, ranks: int = 1) -> None:
    """Write what a checkpoint consists of."""
    (folder / "comprl" / "bank").mkdir(parents=True)
    (folder / "comprl" / "queue.jsonl").touch()  # nothing was waiting
    (folder / "comprl" / "bank" / "manifest.json").write_text("{}")
    (folder / "actor").mkdir()
    for rank in range(ranks):
        for kind in ("model", "optim", "extra_state"):
            torch.save({"a": torch.arange(5)}, folder / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    torch.save({"place": 3}, folder / "data.pt")


def save(run: Path, step: int, keep: int | None = None) -> Path:
    folders = CheckpointFolders(run)
    fill(folders.begin() / f"global_step_{step}")
    return folders.finish(step, PARTS, keep)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if (path / "actor").exists())


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def set_marker(run: Path, text: str | None) -> None:
    (run / MARKER).unlink()
    if text is not None:
        (run / MARKER).write_text(text)
