"""Finds the checkpoint of a run and the parts that it has."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_comprl.config.reading import read_settings
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.record import RunRecord
from verl_comprl.trainer.checkpoint.folders import called_by_its_run, is_given_up
from verl_comprl.trainer.checkpoint.manifest import flaw
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint

_NAME = re.compile(r"global_step_(\d+)")
_FOLDERS = {"actor": "actor", "extractor": "extractor", "bank": "comprl/bank"}


@dataclass(frozen=True)
class Checkpoint:
    """A folder ``RUN/global_step_N``."""

    folder: Path

    @property
    def step(self) -> int:
        """Actor step."""
        return int(self.folder.name.rpartition("_")[2])

    @cached_property
    def config(self) -> Any:
        """The run's config; None if the checkpoint lies apart from its run."""
        from verl_comprl.config.saved import load_config

        try:
            return load_config(self.folder.parent)
        except FileNotFoundError:
            return None

    @cached_property
    def settings(self) -> ComprlConfig | None:
        """The run's settings of ours; None if the checkpoint lies apart from its run."""
        return None if self.config is None else read_settings(self.config)[0]

    @property
    def trained(self) -> tuple[str, ...]:
        """The models that had learned in the run by then; none if the checkpoint lies apart from its run."""
        if self.settings is None:
            return ()
        actor = self.config.trainer.critic_warmup <= self.step  # verl updates it from this step on
        return ("actor",) * actor + ("extractor",) * (
            self.settings.has_extractor_engine and self.settings.extractor.train
        )

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The run's first evaluation at this step: metrics by name, empty if there was none."""
        evaluations = RunRecord(self.folder.parent).evaluations()
        return next((found for found in evaluations if found["step"] == self.step), {})

    @property
    def pruned(self) -> tuple[str, ...]:
        """The models that this checkpoint had until the run removed them; every checkpoint has an actor at first."""
        if (self.folder / _FOLDERS["actor"]).is_dir():
            return ()
        has_extractor = self.settings is not None and self.settings.has_extractor_engine
        return ("actor", "extractor") if has_extractor else ("actor",)

    @property
    def removed_models_note(self) -> str:
        """What the run has removed of this checkpoint, and why, in words; "" if nothing."""
        gone = " and no ".join(self.pruned)
        why = "a run keeps the models of its latest checkpoints only (trainer.max_actor_ckpt_to_keep), the banks of all"
        return f"{self.folder.name} has no {gone} any more: {why}" if gone else ""

    def parts(self, names: Sequence[str]) -> dict[str, Path]:
        """Return the folders of those parts that the checkpoint has.

        Raises:
            FileNotFoundError: If it has none of them.
        """
        there = {name: self.folder / _FOLDERS[name] for name in names if (self.folder / _FOLDERS[name]).is_dir()}
        if not there:
            raise FileNotFoundError(f"{self.folder} has no {' or '.join(names)}")
        return there


def find_checkpoint(folder: Path, step: int | None) -> Checkpoint:
    """Return the checkpoint.

    Args:
        folder: A run, or one of its checkpoints.
        step: The checkpoint's step; None takes the latest that still has its models.

    Raises:
        FileNotFoundError: If there is no such checkpoint; names those there are.
        ValueError: If ``folder`` is a checkpoint and ``step`` another.
        UnreadableCheckpoint: If the latest cannot be read at present.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; give the folder of a run, or RUN/global_step_<N>")
    folder = called_by_its_run(folder)
    if _NAME.fullmatch(folder.name):
        if step not in (None, Checkpoint(folder).step):
            raise ValueError(f"--step {step}, but {folder} is another checkpoint")
        return Checkpoint(folder)
    found = [Checkpoint(path) for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    found = {item.step: item for item in sorted(found, key=lambda item: item.step)}
    away = max((number for number, item in found.items() if not item.folder.exists()), default=0)
    found = {number: item for number, item in found.items() if item.folder.is_dir()}
    # Of older ones only the banks may have been kept (trainer.max_actor_ckpt_to_keep).
    complete = (
        step for step, item in reversed(found.items()) if not is_given_up(item.folder) and not flaw(item.folder)
    )
    wanted = step if step is not None else next(complete, None)
    if step is None and away > (wanted or 0):  # a disk may not be mounted at present
        link = folder / f"global_step_{away}"
        raise UnreadableCheckpoint(f"{link} leads to {link.readlink()}, which is not there; mount it, or give --step")
    if wanted is None or wanted not in found:
        which = "with models" if step is None else f"of step {step}"
        known = f" {which}; it has {', '.join(f'global_step_{number}' for number in found)}" if found else ""
        raise FileNotFoundError(f"{folder} has no checkpoint{known}")
    return found[wanted]
