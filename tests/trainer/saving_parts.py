"""Stubs of what a trainer saves: an engine, the extractor with its manager, and whoever is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from verl_comprl.trainer.checkpoint.manifest import flaw


class Workers:
    """Engine whose only state is a number."""

    workers = ()

    def __init__(self) -> None:
        self.weights = 0
        self.size = 1
        self.failure: Exception | None = None

    def save_checkpoint(self, path: str, _: Any, step: int, max_ckpt_to_keep: int | None) -> None:
        assert max_ckpt_to_keep is None, "verl would remove checkpoints"
        Path(path).mkdir(parents=True)
        state = {"weights": self.weights, "moments": torch.ones(self.size)}
        torch.save(state, Path(path, "model_world_size_1_rank_0.pt"))
        if self.failure is not None:
            raise self.failure

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        self.weights = torch.load(Path(local_path, "model_world_size_1_rank_0.pt"))["weights"]


class Experience:
    """Manager and extractor whose only state is the step; remembers what it was asked for."""

    checkpoint_parts = ("comprl.json",)

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.is_held_back = False

    def hold_updates(self) -> None:
        self.is_held_back = True

    def resume_updates(self) -> None:
        self.is_held_back = False

    def save(self, folder: Path, step: int, is_stopped: Callable[[], bool]) -> None:
        self._events.append("ours")
        (folder / "comprl.json").write_text(json.dumps({"step": step}))

    def note_checkpoint(self, folder: Path) -> None:
        assert flaw(folder) is None, "a manager that is started again begins from it"


class Callback:
    def __init__(self, events: list[str]) -> None:
        self._events = events

    def on_save(self, checkpoint_dir: str, **_: Any) -> None:
        assert flaw(Path(checkpoint_dir)) is None
        self._events.append(Path(checkpoint_dir).name)
