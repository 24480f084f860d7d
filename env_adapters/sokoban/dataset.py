"""Dataset rows for Sokoban; generates no levels."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import split_seeds
from env_adapters.protocols import choose
from env_adapters.sokoban.protocols import PROTOCOLS
from env_adapters.sokoban.task import Task


def build_rows(
    split: str,
    count: int,
    *,
    seed: int = 0,
    size: int = 6,
    protocol: str = "paper",
    boxes: int | None = None,
    difficulty: str | None = None,
    max_turns: int | None = None,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; the splits share no room.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        size: Cells along each side of the room, walls included.
        protocol: As for the environment; likewise the options below.
        boxes: Number of boxes.
        difficulty: ``easy``, ``medium``, ``hard`` or ``any``.
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    chosen, options = choose(PROTOCOLS, protocol, boxes=boxes, difficulty=difficulty, max_turns=max_turns)
    task = Task(size, options["boxes"], options["difficulty"])
    return dataset.build_rows(
        "sokoban",
        task.name,
        [dataset.Task(number, f"{task.name}/{number}", task.goal) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"size": size, "protocol": protocol, **options},
        instructions=chosen.reword(task.instructions(options["max_turns"])),
    )
