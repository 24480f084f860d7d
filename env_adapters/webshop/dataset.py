"""Dataset rows for WebShop."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import SPLITS, Task, split_seeds
from env_adapters.webshop.environment import WebShopEnvironment


def build_rows(
    split: str,
    count: int | None = None,
    *,
    seed: int = 0,
    data: str | None = None,
    observation_mode: str = "text_rich",
    reward: str = "binary",
    max_turns: int = 30,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; no product has goals in both.
        count: Number of rows, at most 2**20; None means one per goal of the split. Goals repeat if there are fewer.
        seed: Selects the episodes, in [0, 2**40).
        data: Source of the shop's data, as in ``WebShopEnvironment``; the rows contain the folder, not the variable.
        observation_mode: ``text`` or ``text_rich``.
        reward: ``binary`` or ``graded``.
        max_turns: Turn limit of each episode.

    Returns:
        The rows.

    Raises:
        ValueError: If an argument is out of range.
    """
    environment = WebShopEnvironment(data=data, observation_mode=observation_mode, reward=reward, max_turns=max_turns)
    if count is None and split in SPLITS:
        count = len(environment.shop.goals[split])
    tasks = []
    for number in split_seeds(split, count or 0, seed=seed):
        goal = environment.shop.goal_of(number)
        tasks.append(Task(number, goal.task_id, goal.instruction))
    return dataset.build_rows(
        "webshop",
        "webshop",
        tasks,
        split=split,
        options={
            "data": environment.data,
            "observation_mode": observation_mode,
            "reward": reward,
            "max_turns": max_turns,
        },
        instructions=environment.instructions,
    )
