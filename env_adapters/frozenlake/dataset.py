"""Dataset rows for FrozenLake; needs no engine."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import split_seeds
from env_adapters.frozenlake.protocols import PROTOCOLS
from env_adapters.frozenlake.task import Task
from env_adapters.protocols import choose


def build_rows(
    split: str,
    count: int,
    *,
    seed: int = 0,
    size: int = 4,
    protocol: str = "paper",
    is_slippery: bool | None = None,
    max_turns: int | None = None,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; the splits share no map.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        size: Cells along each side of the lake.
        protocol: As for the environment; likewise the options below.
        is_slippery: Whether moves slip.
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    chosen, options = choose(PROTOCOLS, protocol, is_slippery=is_slippery, max_turns=max_turns)
    task = Task(size, options["is_slippery"])
    return dataset.build_rows(
        "frozenlake",
        task.name,
        [dataset.Task(number, f"{task.name}/{number}", task.goal) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"size": size, "protocol": protocol, **options},
        instructions=chosen.reword(task.instructions(options["max_turns"])),
    )
