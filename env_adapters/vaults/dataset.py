"""Dataset rows for vaults."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import split_of, split_seeds
from env_adapters.vaults.task import Task, goal
from env_adapters.vaults.world import FAMILIES, KINDS, draw_vault


def build_rows(
    split: str,
    count: int,
    *,
    seed: int = 0,
    world: int = 0,
    family: str = FAMILIES[0],
    kinds: int = len(KINDS),
    length: int = 3,
    max_turns: int = 8,
) -> list[dict[str, Any]]:
    """Build the rows of one split of one family.

    Args:
        split: ``train`` or ``val``. Both have all rules of the world; no name of a rule is in both.
        count: Number of rows, at most 2**20. After 12 (``train``) or 4 (``val``) rows per kind, instances repeat.
        seed: Selects the episodes, in [0, 2**40). Other numbers give the same instances; the world chooses the codes.
        world: Number of the world; each has its own codes.
        family: One of ``world.FAMILIES``.
        kinds: Number of kinds, from 1 to 8.
        length: Moves of a code, from 1 to 6.
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; goal and ``extra_info`` differ between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    task = Task(world, family, kinds, length)

    def row(number: int) -> dataset.Task:
        vault = draw_vault(world, family, kinds, length, *split_of(number))
        return dataset.Task(number, task.id_of(vault), goal(vault))

    return dataset.build_rows(
        "vaults",
        task.name,
        [row(number) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"world": world, "family": family, "kinds": kinds, "length": length, "max_turns": max_turns},
        instructions=task.instructions(max_turns),
    )
