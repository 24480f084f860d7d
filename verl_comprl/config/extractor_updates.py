"""Checks of ``extractor.actor``: it has the schema of the actor's, and an update of the extractor reads less of it."""

from collections.abc import Iterator
from numbers import Real

from omegaconf import DictConfig

_ONLY = {
    "use_kl_loss": (False, "the extractor has no reference policy"),
    "entropy_coeff": (0, "its entropy is not computed"),
    "ppo_epochs": (1, "each batch is trained once (Eq. 7 counts it as once)"),
}
"""Values that an update assumes, and why."""


def update_mistakes(config: DictConfig) -> Iterator[str]:
    """Yield a line for each setting that the extractor's updates would ignore, or at which they would all fail.

    Args:
        config: The run's config; with an engine for the extractor.
    """
    actor = config.extractor.actor
    for name, (value, reason) in _ONLY.items():
        if actor.get(name, value) != value:
            yield f"extractor.actor.{name}={actor[name]} is not allowed, as {reason}; it must be {value}"
    yield from _schedule(actor.optim)


def _schedule(optim: DictConfig) -> Iterator[str]:
    """Check that a schedule has a length: verl fills in the actor's, and how often the extractor learns is not known.

    With its default of -1 a cosine's learning rate is 0 in every second update, and a share of it as warm-up none.
    """
    given = [optim.get(name) for name in ("lr_warmup_steps", "lr_warmup_steps_ratio", "total_training_steps")]
    if not all(isinstance(number, Real) for number in given if number is not None):
        return  # which has been reported
    steps, share, length = (number or 0 for number in given)
    kind = optim.get("warmup_style") or optim.get("lr_scheduler_type")
    wanting = ["lr_scheduler_type=cosine"] if kind == "cosine" else []
    wanting += [f"lr_warmup_steps_ratio={share}"] if share > 0 >= steps else []
    for setting in wanting if length <= 0 else ():
        yield (
            f"extractor.actor.optim.{setting} needs extractor.actor.optim.total_training_steps, the number of its "
            "updates, which depends on how the run goes; set it, or use lr_scheduler_type=constant with lr_warmup_steps"
        )
