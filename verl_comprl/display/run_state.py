"""State of a run as it is shown on the terminal, and its one-line texts."""

import time
from dataclasses import dataclass, field

from verl_comprl.display.progress import Metrics
from verl_comprl.display.units import counted, duration, percent

_PHASES = {
    "playing": ("gen",),
    "actor training": ("old_log_prob", "update_actor", "update_weights"),
    "evaluation": ("testing",),
    "checkpoints": ("save_checkpoint",),
}
"""Displayed phase → verl's ``timing_s`` metrics that it sums."""


@dataclass
class RunState:
    """What has been reported so far."""

    step: int = 0
    total: int = 0
    steps_here: int = 0
    """Steps of this process; a resumed run has done others before."""
    metrics: Metrics = field(default_factory=dict)
    """Of the latest step."""
    evaluations: dict[int, Metrics] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each phase."""
    step_seconds: float = 0.0
    """Of all steps together."""
    activity: str = ""
    started: float = field(default_factory=time.perf_counter)
    activity_started: float = field(default_factory=time.perf_counter)

    def record_activity(self, text: str) -> None:
        """Remember what the run does now."""
        self.activity, self.activity_started = text, time.perf_counter()

    def record_step(self, step: int, total: int, metrics: Metrics) -> None:
        """Take over the metrics of a step."""
        self.step, self.total, self.metrics = step, total, metrics
        self.steps_here += 1
        self.step_seconds += float(metrics.get("timing_s/step", 0.0))
        for phase, parts in _PHASES.items():
            seconds = sum(float(metrics.get(f"timing_s/{part}", 0.0)) for part in parts)
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @property
    def has_experience(self) -> bool:
        """Whether the run has an experience bank; the baseline has none."""
        # A step that the manager did not close in time has none of the manager's metrics.
        return "comprl/bank/size" in self.metrics or "comprl/collect_timeouts" in self.metrics

    @property
    def seconds_per_step(self) -> float:
        """Mean over the steps of this process."""
        return self.step_seconds / max(1, self.steps_here)

    def success(self) -> str:
        """Return the share of solved tasks in both halves of the latest step."""
        guided, free = (self.metrics.get(f"comprl/{half}/success") for half in ("guided", "free"))
        if not self.has_experience:
            return percent(free)
        if guided is None:
            return f"{percent(free)} free (none guided)"
        halves = {"guided": guided, "free": free}
        return ", ".join(f"{percent(share)} {name}" for name, share in halves.items() if share is not None)

    def bank(self) -> str:
        """Return the size of the bank; "-" if the latest step does not tell it."""
        size = self.metrics.get("comprl/bank/size")
        return "-" if size is None else counted(size, "entry", "entries")

    def extractor(self) -> str:
        """Return the number of the extractor's updates."""
        updates = self.metrics.get("comprl/extractor/updates")
        if self.metrics and updates is None:
            return "frozen"  # an endpoint, or the actor's server
        return counted(updates or 0, "update", "updates")

    def step_line(self) -> str:
        """Return the latest step as one line."""
        parts = [f"step {self.step}/{self.total}", f"success {self.success()}"]
        if self.has_experience:
            parts += [f"bank {self.bank()}", f"extractor {self.extractor()}"]
        parts.append(duration(float(self.metrics.get("timing_s/step", 0.0))))
        return " · ".join(parts)

    def evaluation(self, step: int, *, interval: bool = False) -> str:
        """Return the success that an evaluation measured, with its 95 % confidence interval if wanted."""
        measured = self.evaluations[step]

        def shown(arm: str) -> str:
            name = f"comprl/eval/success_{arm}"
            text = percent(measured.get(name))
            if interval and f"{name}_low" in measured:
                text += f" ({100 * measured[f'{name}_low']:.0f} to {100 * measured[f'{name}_high']:.0f} %)"
            return text

        if "comprl/eval/success_with" not in measured:
            return f"success {shown('without')}"
        return f"success {shown('with')} with experience, {shown('without')} without"

    def evaluation_name(self, step: int) -> str:
        """Return when an evaluation was made."""
        return "before training" if step == 0 else f"after step {step}"
