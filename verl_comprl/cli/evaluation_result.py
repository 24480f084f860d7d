"""Result of ``comprl evaluate`` as JSON, built from the metrics line that the trainer wrote."""

from pathlib import Path
from typing import Any

from verl_comprl.record import RunRecord

_PREFIX = "comprl/eval/"
_ARMS = {"_without": "without", "_with": "with"}


class EvaluationError(ValueError):
    """An evaluation changed the bank, which it may only read."""


def result(config: Any, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Return the result, JSON-compatible.

    Args:
        config: Configuration of the evaluation run.
        checkpoint: Checkpoint that was evaluated.
        folder: Folder of the evaluation run, in which the trainer wrote its evaluations.
    """
    *_, measured = RunRecord(folder).evaluations()
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    found: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "step": measured["step"],
        "arm": config.comprl.arm,
        "sampling": {name: sampling[name] for name in ("temperature", "top_p", "top_k")},
    }
    if config.comprl.experience:
        found["bank"] = {
            "snapshot": config.comprl.initial_bank,
            "sha256_before": measured["bank_before"],
            "sha256": measured["bank"],
        }
    return found | arms({name: value for name, value in measured.items() if name.startswith(_PREFIX)})


def check_bank(found: dict[str, Any]) -> None:
    """Check that an evaluation has left its bank as it was.

    Both checksums are the trainer's own: another version of a library may have written the snapshot in other bytes.

    Args:
        found: What ``result`` returned.

    Raises:
        EvaluationError: If the bank's entries differ from those it started with, or that is not known.
    """
    if bank := found.get("bank"):
        before, after = bank["sha256_before"], bank["sha256"]
        if not before or not after:
            raise EvaluationError("whether the evaluation changed its bank is not known: its manager did not answer")
        if before != after:
            raise EvaluationError(f"the evaluation changed its bank: its checksum was {before}, now it is {after}")


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
