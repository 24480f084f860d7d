"""Dataset rows for WebShop."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import SPLITS, Task, split_seeds
from env_adapters.webshop.environment import WebShopEnvironment
from env_adapters.webshop.records import SYNTHETIC


def build_rows(
    split: str,
    count: int | None = None,
    *,
    seed: int = 0,
    data: str | None = None,
    protocol: str = "paper",
    goals: str = "synthetic",
    observation_mode: str | None = None,
    reward: str | None = None,
    split_by: str | None = None,
    max_turns: int | None = None,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; by default no product has goals in both.
        count: Number of rows, at most 2**20; None means as many as the split has goals. Goals that are drawn by weight
            may repeat.
        seed: Selects the episodes, in [0, 2**40).
        data: Source of the shop's data, as in ``WebShopEnvironment``; the rows contain the folder, not the variable.
        protocol: As for the environment; likewise the options below.
        goals: ``synthetic`` or ``human``.
        observation_mode: ``text`` or ``text_rich``.
        reward: ``binary`` or ``graded``.
        split_by: ``product``, ``none`` or ``goal``.
        max_turns: Turn limit of each episode.

    Returns:
        The rows.

    Raises:
        ValueError: If an argument is out of range.
    """
    environment = WebShopEnvironment(
        data=data,
        protocol=protocol,
        goals=goals,
        observation_mode=observation_mode,
        reward=reward,
        split_by=split_by,
        max_turns=max_turns,
    )
    if count is None and split in SPLITS:
        count = len(environment.draws.goals[split])
    tasks = []
    for number in split_seeds(split, count or 0, seed=seed):
        goal = environment.draws.goal_of(number)
        tasks.append(Task(number, goal.task_id, goal.instruction))
    return dataset.build_rows(
        "webshop",
        "webshop-synthetic" if environment.data == SYNTHETIC else "webshop",  # no results under the benchmark's name
        tasks,
        split=split,
        options=environment.options,
        instructions=environment.instructions,
    )
