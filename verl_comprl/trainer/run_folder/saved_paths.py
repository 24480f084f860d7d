"""Lists what a run has left on disk, for its last lines on the terminal."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.record.reader import EVALUATIONS, METRICS


def saved_paths(folder: Path, saved_step: int, config: DictConfig, comprl: ComprlConfig) -> dict[str, str]:
    """Return the places of a finished run's results that exist, by what they are.

    Args:
        folder: The run's folder.
        saved_step: Step of its latest checkpoint; -1 without one.
        config: The run's config.
        comprl: Our part of it, typed.
    """
    folder = folder.resolve()
    paths: dict[str, Any] = {}
    if saved_step >= 0:
        paths["checkpoint"] = folder / f"global_step_{saved_step}"
    if comprl.experience:
        bank = comprl.bank
        paths["experience bank"] = f"{bank.url} {bank.collection}" if bank.url else Path(bank.path).resolve()
    if "tensorboard" in config.trainer.logger:
        paths["learning curves"] = Path(os.environ.get("TENSORBOARD_DIR", "tensorboard_log")).resolve()
    paths |= {
        "all metrics": folder / METRICS,
        "evaluations": folder / EVALUATIONS,
        "verl's output": folder / "train.log",
    }
    return {name: str(path) for name, path in paths.items() if "://" in str(path) or Path(path).exists()}
