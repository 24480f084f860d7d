"""Holds a run whose config can be trained, and reads its earlier results from its folder."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.saved import changed_settings
from verl_comprl.config.secrets import run_redactor
from verl_comprl.files import write_atomically
from verl_comprl.record.reader import RunRecord
from verl_comprl.sweep.overrides import effective
from verl_comprl.sweep.runs import Run
from verl_comprl.trainer.checkpoint.folders import CheckpointFolders, step_of
from verl_comprl.trainer.checkpoint.manifest import TornCheckpoint
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint

FINISHED = "finished.json"
"""In the folder of a run that has finished: its record."""
UNFINISHED = "unfinished.json"
"""In the folder of a run that was interrupted or failed, also when it continued after it had finished: its record."""

_STEPS = "trainer.total_training_steps"
_STEP = "training/global_step"
"""Metric of every step."""
_FREE = {_STEPS, "trainer.test_freq", "trainer.save_freq"}
"""Settings in which a run may differ from what it was before: of these only the number of steps matters."""
_NAMED = 4
"""Changed settings that are named."""

Record = dict[str, Any]
"""Record of a run: name, overrides, folder, status, steps, seconds, error and last metrics."""


@dataclass
class CheckedRun:
    """A run whose config can be trained."""

    run: Run
    config: Any
    guided_fraction: float | None
    """Share of guided attempts; ``None`` without experience."""
    own_engines: tuple[str, ...] = ()
    """Why the run needs engines of its own; empty if it shares those of the sweep."""
    begun_steps: int | None = None
    """Its number of steps, which its epochs may decide; ``None`` before it has begun."""

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return Path(self.config.trainer.default_local_dir)

    @property
    def overrides(self) -> list[str]:
        """The run's overrides, as they may be shown and written."""
        return self._redacted(self.run.overrides)

    def _redacted(self, overrides: Sequence[str]) -> list[str]:
        return list(map(run_redactor(self.config), overrides))

    @property
    def steps(self) -> int | None:
        """Steps that are wanted; ``None`` for all of the epochs."""
        return _steps(self.run.overrides, self.config.trainer.get("total_training_steps"))

    @property
    def stored(self) -> Record | None:
        """The record that is in the run's folder: of this run, or of a shorter or longer one."""
        return self._read(FINISHED)

    @property
    def stored_steps(self) -> int | None:
        """Steps of the stored record's run; ``None`` if there is none or it does not say."""
        stored = self.stored
        if not stored:
            return None
        # Those of earlier versions have no number of steps.
        reached = stored.get("steps") or stored.get("metrics", {}).get(_STEP)
        return _steps(stored["overrides"], reached)

    @property
    def surplus(self) -> int | None:
        """Steps that the stored record's run has beyond those wanted; ``None`` without one, or if it is another run."""
        stored = self.stored
        if not stored:
            return None
        # Those of earlier versions are not redacted.
        before, now = effective(self._redacted(stored["overrides"])), effective(self.overrides)
        if any(before.get(key) != now.get(key) for key in (before.keys() | now.keys()) - _FREE):
            return None
        if self.steps is None or self.stored_steps is None:  # the epochs decide, or a record of earlier versions
            return 0 if before.get(_STEPS) == now.get(_STEPS) else None
        return self.stored_steps - self.steps

    @property
    def record(self) -> Record | None:
        """The record of a run that has finished before, with as many steps as are wanted now or more."""
        return self.stored if self.surplus is not None and self.surplus >= 0 else None

    @property
    def changes(self) -> str:
        """Settings that the run in the folder had otherwise, if it counts or is continued; empty if there are none."""
        if not (self.record or self.checkpoint):
            return ""
        try:
            changed = changed_settings(self.config, self.folder)
        except ValueError as error:
            return f"settings that cannot be read: {error}"
        texts = [f"{key}={before} (now {now})" for key, (before, now) in sorted(changed.items()) if key not in _FREE]
        more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
        return ", ".join(texts[:_NAMED]) + more

    @property
    def checkpoint(self) -> int:
        """Step of the checkpoint from which the run would continue; 0 if it would begin."""
        with suppress(TornCheckpoint, UnreadableCheckpoint):  # the run says so when it starts
            return self._find_checkpoint()
        return 0

    def _find_checkpoint(self) -> int:
        latest = CheckpointFolders(self.folder).latest() if self._resumes else None
        return step_of(latest) if latest else 0

    @property
    def seconds(self) -> float:
        """Seconds of the parts of the run from which it would continue; 0 if it would begin."""
        if not self.checkpoint:
            return 0.0
        # The record of a later part includes the seconds of the earlier ones.
        records = filter(None, (self._read(FINISHED), self._read(UNFINISHED)))
        return max((record["seconds"] for record in records), default=0.0)

    @property
    def mistake(self) -> str | None:
        """Why the run cannot continue from what is in its folder, if it cannot.

        Raises:
            ConfigError: If a record cannot be read.
        """
        self._read(UNFINISHED)
        stored = self.stored
        if self.record:
            return None
        try:
            self._find_checkpoint()
        except UnreadableCheckpoint as error:  # it would count as none, and the run as one that is to be removed
            return str(error)
        except TornCheckpoint:
            pass
        if stored and self.surplus is None:
            done = " ".join(self._redacted(stored["overrides"]))
            return f"{self.folder} has a finished run with {done}; use another folder or remove it"
        # The checkpoint is a later one if the run was interrupted when it had gone on.
        if stored and self.checkpoint < (self.stored_steps or 0):
            return (
                f"{self.folder} has a finished run of {self.stored_steps} steps without a checkpoint of its last one, "
                "so that it cannot be continued; remove it, and set "
                + ("trainer.save_freq" if self._resumes else "trainer.resume_mode=auto")
            )
        if self.steps is not None and self.checkpoint > self.steps:
            return (
                f"{self.folder} has a checkpoint of step {self.checkpoint}, beyond {_STEPS}={self.steps}; "
                f"ask for at least {self.checkpoint} steps, use another folder or remove it"
            )
        return None

    def reached(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
        """Return the metrics of the last step in the folder, and the evaluations by step; empty in a new run."""
        record = RunRecord(self.folder)
        last: dict[str, float] = {}
        for line in record.metrics():
            if _STEP in line["data"]:  # an evaluation before the first step of a part has a line of its own
                last = line["data"]
        evaluations: dict[int, dict[str, float]] = {
            line.pop("step"): {name: float(value) for name, value in line.items() if isinstance(value, int | float)}
            for line in record.evaluations()
        }
        return last, evaluations

    def keep(self, record: Record) -> None:
        """Write the record of the run, which has ended in some way, into its folder.

        Raises:
            OSError: If the disk is full, for example; the run counts as it did before.
        """
        finished = record["status"] == "finished"
        file = self.folder / (FINISHED if finished else UNFINISHED)
        write_atomically(file, (json.dumps(record) + "\n").encode())
        if finished:
            self.forget_unfinished()

    def forget_unfinished(self) -> None:
        """Remove the record of a part that was interrupted or failed, if there is one."""
        (self.folder / UNFINISHED).unlink(missing_ok=True)

    def _read(self, name: str) -> Record | None:
        file = self.folder / name
        if not file.exists():
            return None
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{file} cannot be read: {error}; remove it") from error

    @property
    def _resumes(self) -> bool:
        return self.config.trainer.get("resume_mode", "auto") == "auto"


def _steps(overrides: Sequence[str], otherwise: float | None) -> int | None:
    """Return the number of steps that overrides ask for, or another if they do not."""
    asked = effective(overrides).get(_STEPS, "")
    if asked.isdecimal():
        return int(asked)
    return None if otherwise is None else int(otherwise)
