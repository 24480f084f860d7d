"""Dataset rows for MiniHack; needs no engine."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import Task, split_seeds
from env_adapters.minihack.variants import build_instructions, get_variant


def build_rows(variant: str, split: str, count: int, *, seed: int = 0, max_turns: int = 30) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        variant: A key of ``env_adapters.minihack.variants.VARIANTS``.
        split: ``train`` or ``val``; their episodes are disjoint.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    chosen = get_variant(variant)
    name = f"minihack/{variant}"
    return dataset.build_rows(
        "minihack",
        name,
        [Task(number, f"{name}/{number}", chosen.goal) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"variant": variant, "max_turns": max_turns},
        instructions=build_instructions(chosen, max_turns),
    )
