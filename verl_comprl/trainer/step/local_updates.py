"""Metrics of the rollouts of a step, over all of its local updates (``parameter_sync_step`` of ``separate_async``).

verl makes one number of those of several updates by the metric's name: with "max", "min" or "sum" in it, which may be a
task's name, it takes that, else the mean, also of counts. So ours are computed once from the rows of all updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_comprl.trainer.step.batch import RolloutBatch
from verl_comprl.trainer.step.metrics import Details, advantage_metrics, rollout_metrics, span_metrics


@dataclass
class LocalUpdates:
    """Rollouts of the local updates of a step so far."""

    details: list[Details] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """Of the rollouts, if our estimator computes them."""
    guided: list[bool] = field(default_factory=list)
    """Half of each rollout that has an advantage."""
    distilled: float | None = None
    """Outputs that self-distillation trained on; None without it."""

    def add(self, rows: RolloutBatch) -> None:
        """Add the rollouts of one update."""
        self.details += [rows.details[row] for row in rows.episodes]
        self.tasks += [rows.tasks[row] for row in rows.episodes]
        self.spans += [newest - oldest + 1 for oldest, newest in (rows.versions[row] for row in rows.episodes)]

    def add_advantages(self, advantages: Sequence[float], guided: Sequence[bool]) -> None:
        """Add the rollouts' advantages in one update."""
        self.advantages += advantages
        self.guided += guided

    def add_distilled(self, count: float) -> None:
        """Add the number of outputs that self-distillation trains on in one update."""
        self.distilled = (self.distilled or 0.0) + count

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics."""
        result = rollout_metrics(self.details, self.tasks) | span_metrics(self.spans)
        result |= advantage_metrics(self.advantages, self.guided)
        if self.distilled is not None:
            result["comprl/distilled"] = self.distilled
        return result
