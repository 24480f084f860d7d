"""Describes to the user what a run is going to do."""

from typing import Any


def describe_training(config: Any, guided_fraction: float | None, *, after: int = 0) -> str:
    """Return a few lines that name what the later lines count.

    Args:
        config: The run's config.
        guided_fraction: Share of guided attempts; ``None`` without experience.
        after: The step that the run is resumed from; 0 for a new run.
    """
    tasks, attempts = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    steps = config.trainer.total_training_steps
    begin = "Training" if steps is None else f"Training for {steps} steps"
    if after:
        begin = f"Resuming after step {after}" + ("" if steps is None else f" of {steps}")
    lines = [
        f"{begin}; in each step, the actor plays {tasks} tasks {attempts} times. Success is the share of solved ones."
    ]
    if guided_fraction is not None:
        guided = round(attempts * guided_fraction)
        lines += [
            f"{guided} of {attempts} attempts are guided by an entry of the experience bank, the others are free.",
            _extractor(config.comprl.extractor),
        ]
    return "\n".join(lines)


def _extractor(settings: Any) -> str:
    if not settings.distill:
        return "No episode becomes an entry: the bank is the one that the run was given."
    if not settings.train:
        return "The extractor reads what happened and writes the entries; it does not learn."
    return "The extractor reads what happened, writes the entries, and is updated by whether they helped."
