"""What ``comprl evaluate`` prints, from the line that the trainer wrote."""

import json
from pathlib import Path
from typing import Any

from verl_comprl.experience.transfer.snapshot import snapshot_checksum
from verl_comprl.trainer.run_log import EVALUATIONS

_PREFIX = "comprl/eval/"
_ARMS = {"_without": "without", "_with": "with"}


class EvaluationError(ValueError):
    """An evaluation changed what it may only read."""


def result(config: Any, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Return the result as JSON takes it.

    Args:
        config: What was run.
        checkpoint: What was evaluated.
        folder: Where the trainer wrote.

    Raises:
        EvaluationError: If the bank is not what it was before.
    """
    measured = json.loads((folder / EVALUATIONS).read_text(encoding="utf-8").splitlines()[-1])
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    found: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "step": measured["step"],
        "arm": config.comprl.arm,
        "sampling": {name: sampling[name] for name in ("temperature", "top_p", "top_k")},
    }
    if config.comprl.experience:
        snapshot = config.comprl.initial_bank
        before, after = snapshot_checksum(snapshot), measured["bank"]
        if before != after:
            raise EvaluationError(f"the evaluation changed its bank: entries of {snapshot} were {before}, are {after}")
        found["bank"] = {"snapshot": snapshot, "sha256": after}
    return found | arms({name: value for name, value in measured.items() if name.startswith(_PREFIX)})


def arms(metrics: dict[str, float]) -> dict[str, Any]:
    """Return metrics by task, arm and measure: ``{"average": {"with": {"success": …}}, "tasks": {<task>: …}}``."""
    found: dict[str, Any] = {"average": {}, "tasks": {}}
    for name, value in metrics.items():
        task, _, measure = name.removeprefix(_PREFIX).rpartition("/")
        bound = next((end for end in ("_low", "_high") if measure.endswith(end)), "")
        measure = measure.removesuffix(bound)
        suffix = next(suffix for suffix in _ARMS if measure.endswith(suffix))
        place = found["tasks"].setdefault(task, {}) if task else found["average"]
        place.setdefault(_ARMS[suffix], {})[measure.removesuffix(suffix) + bound] = value
    return found
