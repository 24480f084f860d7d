"""State of a run as its files tell it; the run itself is never asked, so it cannot be held up."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from verl_comprl.curves.run import Run, open_run
from verl_comprl.display.printable import printable
from verl_comprl.display.progress import Metrics
from verl_comprl.display.run_state import RunState
from verl_comprl.display.units import duration
from verl_comprl.record.follower import LineFollower
from verl_comprl.record.reader import EVENTS, METRICS, TRAIN_LOG

RECENT = 10
"""Steps of the means that are shown."""

_PREFIXES = ("comprl/", "timing_s/", "actor/perf/")
_QUIET = ("comprl/task/", "comprl/rollout/", "comprl/eval/")
"""Left out because there are many of them, and a long run has many steps."""
_SHORTEST_SILENCE = 120.0
"""Seconds without a line in any file after which a run may have been stopped."""
_SILENCE_AT_START = 600.0
"""The same before the first step: models are loaded and workers started, and an evaluation may come first."""
_PER_STEP = ("step", "testing", "save_checkpoint")


def _wanted(name: str) -> bool:
    return name.startswith("comprl/eval/success_") or (name.startswith(_PREFIXES) and not name.startswith(_QUIET))


class WatchedRun:
    """A run that is starting, running or over."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Watch the run in ``folder``.

        Args:
            folder: The run's folder; a run that has just been started may have nothing but its log in it.
            clock: Returns the present time, comparable with that of files.

        Raises:
            FileNotFoundError: If there is no run in the folder.
            ValueError: If its configuration cannot be read.
        """
        self.folder, self._clock = folder, clock
        self.run: Run | None = None
        self._follower: LineFollower | None = None
        self._open()
        self.state = RunState()
        self.steps: list[Metrics] = []
        """Metrics of each step."""

    def refresh(self) -> None:
        """Read what the run has written since the last call."""
        if self._follower is None:
            self._open()
        if self._follower is None:
            return
        self._follower.poll()
        records = self._follower.records
        self.steps = [record["data"] for record in records if "comprl/free/rollouts" in record["data"]]
        self.state = RunState()
        for record in records:
            data = record["data"]
            if "comprl/eval/success_without" in data:
                # A run that is continued evaluates again where it had ended.
                self.state.evaluations.setdefault(record["step"], data)
            if "comprl/free/rollouts" in data:
                self.state.record_step(record["step"], self.total, data)

    @property
    def total(self) -> int:
        """Steps that the run is to make; 0 if that is not known."""
        return (self.run and self.run.total_steps) or 0

    def status(self) -> str:
        """Return whether the run is running, as far as files can tell."""
        finished, unfinished = self._record("finished.json"), self._record("unfinished.json")
        metrics = _modified(self.folder / METRICS)
        if unfinished and _modified(self.folder / "unfinished.json") >= metrics:
            reason = printable(str(unfinished.get("error", ""))).split("\n")[0]
            return str(unfinished.get("status", "unfinished")) + (f": {reason}" if reason else "")
        if finished and _modified(self.folder / "finished.json") >= metrics:
            return f"finished after {duration(float(finished.get('seconds', 0)))}"
        if self.total and self.state.step >= self.total:
            return "finished"
        silence = self.silence()
        shortest = _SHORTEST_SILENCE if self.state.step else _SILENCE_AT_START
        if silence > max(shortest, 5 * self.seconds_per_step()):
            return f"silent for {duration(silence)}"
        return "running" if self.state.step else "starting"

    @property
    def is_running(self) -> bool:
        """Whether it is: a run that is silent or has ended has no time left that could be told."""
        return self.status() == "running"

    def silence(self) -> float:
        """Return the seconds since the run has written a line."""
        files = (METRICS, EVENTS, TRAIN_LOG)
        return max(0.0, self._clock() - max(_modified(self.folder / name) for name in files))

    def seconds_per_step(self, parts: tuple[str, ...] = ("step",)) -> float:
        """Return the mean of the recent steps; 0 if there is none."""
        recent = self.steps[-RECENT:]
        return sum(step.get(f"timing_s/{part}", 0.0) for step in recent for part in parts) / max(1, len(recent))

    def seconds_left(self) -> float:
        """Return about how long the run will take, with evaluations and checkpoints as they have been."""
        spent = sum(step.get(f"timing_s/{part}", 0.0) for step in self.steps for part in _PER_STEP[1:])
        per_step = self.seconds_per_step() + spent / max(1, len(self.steps))
        return max(0, self.total - self.state.step) * per_step

    def values(self, name: str) -> list[float]:
        """Return a metric of all steps; NaN where a step does not have it."""
        return [step.get(name, math.nan) for step in self.steps]

    def return_shares(self) -> list[float]:
        """Return by step the share of episodes about which the extractor wrote nothing; the metrics count since 0."""
        counts = [
            (step.get("comprl/distillations/return", 0.0), step.get("comprl/distillations/written", 0.0))
            for step in self.steps
        ]
        shares = []
        for (nothing, written), (before, written_before) in zip(counts, [(0.0, 0.0), *counts], strict=False):
            total = nothing - before + written - written_before
            shares.append((nothing - before) / total if total > 0 else math.nan)
        return shares

    def _open(self) -> None:
        try:
            self.run = open_run(self.folder)
        except FileNotFoundError:
            if not (self.folder / TRAIN_LOG).is_file():
                raise
            return  # it is starting: its configuration comes after its log
        self._follower = self.run.follow(_wanted)

    def _record(self, name: str) -> dict:
        """Return what a sweep has written about the end of the run; {} if it has not."""
        try:
            record = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def recent_mean(values: list[float]) -> float:
    """Return the mean of the recent values that exist; NaN if there is none."""
    finite = [value for value in values[-RECENT:] if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
