"""A run's folder: its saved configuration, and its metrics by step."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from verl_comprl.nearest import did_you_mean
from verl_comprl.record.follower import LineFollower
from verl_comprl.record.reader import METRICS, TRAIN_LOG, step_metrics
from verl_comprl.record.settings_file import SETTINGS, read_settings

Series = dict[int, float]
"""Values of a metric by actor step."""


@dataclass(frozen=True)
class Run:
    """A run that has been started at some time."""

    folder: Path
    config: dict[str, Any]

    def setting(self, key: str) -> Any:
        """Return a setting of the saved configuration, such as ``comprl.arm``.

        Raises:
            ValueError: If there is none.
        """
        value: Any = self.config
        before = ""
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                known = [f"{before}{name}" for name in value] if isinstance(value, dict) else []
                hint = did_you_mean(before + part, known).rstrip()
                raise ValueError(f"{self.folder / SETTINGS} has no setting {key!r}" + (f"; {hint}" if hint else ""))
            value, before = value[part], f"{before}{part}."
        return value

    @property
    def arm(self) -> str:
        """Name of the run's arm."""
        return str(self.setting("comprl.arm"))

    @property
    def has_experience(self) -> bool:
        """Whether the run has an experience bank; the baseline has none."""
        return bool(self.setting("comprl.experience"))

    @property
    def total_steps(self) -> int | None:
        """Steps that the run is to make; None if that is not known: an older release left it to the epochs."""
        steps = self.config.get("trainer", {}).get("total_training_steps")
        return None if steps is None else int(steps)

    def follow(self, wanted: Callable[[str], bool]) -> LineFollower:
        """Return a follower of the run's metrics that keeps only those whose names are wanted."""
        return LineFollower(self.folder / METRICS, partial(step_metrics, wanted=wanted))

    def series(self, names: Collection[str]) -> dict[str, Series]:
        """Return the metrics of these names that the run has.

        A run that is continued evaluates again where it had ended; the first value of a step counts.
        """
        follower = self.follow(frozenset(names).__contains__)
        follower.poll()
        found: dict[str, Series] = {}
        for record in follower.records:
            for name, value in record["data"].items():
                found.setdefault(name, {}).setdefault(record["step"], value)
        return found


def open_run(folder: Path) -> Run:
    """Return the run in ``folder``.

    Raises:
        FileNotFoundError: If there is no such folder, or no run in it.
        ValueError: If its configuration is not that of a run of verl-comprl.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give the folder of a run, its trainer.default_local_dir")
    file = folder / SETTINGS
    if not file.is_file():
        hint = "; it contains folders of runs: give those" if next(folder.glob(f"*/{SETTINGS}"), None) else ""
        if (folder / TRAIN_LOG).is_file():
            hint = " yet; the run writes it when its models have started"
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {SETTINGS}{hint}")
    config = read_settings(file)
    comprl = config.get("comprl") if isinstance(config, dict) else None
    if not isinstance(comprl, dict) or not {"arm", "experience"} <= comprl.keys():
        raise ValueError(f"{file} is not the configuration of a run of verl-comprl: it has no comprl.arm")
    return Run(folder, config)
