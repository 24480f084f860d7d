"""Dataset rows for FrozenLake; needs no engine."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import split_seeds
from env_adapters.frozenlake.task import Task


def build_rows(
    split: str, count: int, *, seed: int = 0, size: int = 4, is_slippery: bool = False, max_turns: int = 30
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; the splits share no map.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        size: Cells along each side of the lake.
        is_slippery: Whether moves slip.
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    task = Task(size, is_slippery)
    return dataset.build_rows(
        "frozenlake",
        task.name,
        [dataset.Task(number, f"{task.name}/{number}", task.goal) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"size": size, "is_slippery": is_slippery, "max_turns": max_turns},
        instructions=task.instructions(max_turns),
    )
