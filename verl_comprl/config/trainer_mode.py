"""The trainer of a run: its mode under verl's own name."""

from omegaconf import DictConfig

COLOCATE, SEPARATE = "colocate_async", "separate_async"


def base_mode(config: DictConfig) -> str:
    """Return verl's name of the run's trainer; one that has begun knows its mode by that name already."""
    return str(config.trainer.v1.trainer_mode).removeprefix("comprl_")


def is_separate(config: DictConfig) -> bool:
    """Return whether servers of the actor have device slots of their own."""
    return base_mode(config) == SEPARATE
