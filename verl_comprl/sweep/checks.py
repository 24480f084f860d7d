"""Start-up checks of all runs of a sweep, and the stored records of finished runs."""

import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.runs import Run
from verl_comprl.training import check_config

FINISHED = "finished.json"
"""In the folder of a run that has finished: its record."""

_STEPS = "trainer.total_training_steps="
_FREE = (_STEPS, "trainer.test_freq=", "trainer.save_freq=")
"""Settings in which a run that goes on may differ from what it was before."""
_CHECKPOINT = "latest_checkpointed_iteration.txt"
"""verl's file in the folder of a run, with the step of the latest checkpoint."""

Record = dict[str, Any]
"""What is kept of a run: name, overrides, folder, status, seconds, error and last metrics."""


@dataclass
class CheckedRun:
    """A run whose config can be trained."""

    run: Run
    config: Any
    guided_fraction: float | None
    """Share of guided attempts; ``None`` without experience."""

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return Path(self.config.trainer.default_local_dir)

    @property
    def stored(self) -> Record | None:
        """The record that is in the run's folder: that of this run, or of a shorter one that it continues."""
        file = self.folder / FINISHED
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    @property
    def record(self) -> Record | None:
        """The record of a run that has finished before, with as many steps as are wanted now."""
        stored = self.stored
        return stored if stored and stored["overrides"] == list(self.run.overrides) else None

    @property
    def mistake(self) -> str | None:
        """Why the run cannot be in a folder in which one has finished, if it cannot."""
        stored = self.stored
        if not stored or self.record:
            return None
        done = " ".join(stored["overrides"])
        (steps, others), (wanted, same) = _split(stored["overrides"]), _split(self.run.overrides)
        if others != same or wanted <= steps:
            return f"{self.folder} has a finished run with {done}; use another folder or remove it"
        checkpoint = self.folder / _CHECKPOINT
        if not checkpoint.exists() or int(checkpoint.read_text()) != steps:
            return (
                f"{self.folder} has a finished run of {steps} steps without a checkpoint of its last one, so that it "
                "cannot be continued; remove it, and set trainer.save_freq"
            )
        return None


def check(runs: Sequence[Run], configs: Sequence[Any]) -> list[CheckedRun]:
    """Check the configs of ``runs``, each for itself and whether they can share engines.

    Raises:
        ConfigError: With one line for each mistake.
    """
    from verl_comprl import plugin
    from verl_comprl.compat import check_symbols
    from verl_comprl.sweep.shared_settings import conflicts, unsupported

    if not runs:
        raise ConfigError("a sweep needs at least one run")
    check_symbols()
    plugin.verify()
    pairs = list(zip(runs, configs, strict=True))
    reference, shared = next((pair for pair in pairs if pair[1].comprl.experience), pairs[0])
    # All comparisons come first: check_config completes a config.
    compared = [[*unsupported(config), *conflicts(config, shared, reference.name)] for config in configs]
    checked: list[CheckedRun] = []
    mistakes: list[str] = []
    for (run, config), found in zip(pairs, compared, strict=True):
        try:
            with redirect_stdout(StringIO()):  # verl's remarks
                comprl = check_config(config)
            checked.append(CheckedRun(run, config, comprl.guided_fraction if comprl.experience else None))
        except (ValueError, AssertionError) as error:
            found += str(error).splitlines()
        else:
            found += filter(None, [checked[-1].mistake])
        mistakes += [f"run {run.name}: {mistake}" for mistake in found]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return checked


def _split(overrides: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of steps that overrides ask for (0 if they do not), and those that may not differ."""
    steps = [int(override.removeprefix(_STEPS)) for override in overrides if override.startswith(_STEPS)]
    return (steps or [0])[-1], [override for override in overrides if not override.startswith(_FREE)]
