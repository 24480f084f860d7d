"""Dataset rows of the family; needs no engine, except to make the default games."""

from typing import Any

from env_adapters import dataset
from env_adapters.alfworld.game_file import put_template, task_of
from env_adapters.alfworld.games import list_games, resolve_data
from env_adapters.alfworld.prompt import build_instructions
from env_adapters.alfworld.rewards import failure_reward
from env_adapters.dataset import Task, split_of, split_seeds


def build_rows(
    split: str,
    count: int | None = None,
    *,
    data: str | None = None,
    reward: str = "signed",
    seed: int = 0,
    max_turns: int = 40,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``.
        count: Number of rows, at most 2**20; None is one per game of the split. Games repeat where there are fewer.
        data: Where the games are, as for the environment. The rows name the place that it stands for now.
        reward: As for the environment.
        seed: Chooses the games, in [0, 2**40).
        max_turns: Turn limit of each episode.

    Raises:
        ValueError: If an argument is out of range, there are no games, or they are of more than one dialect.
    """
    failure_reward(reward)  # is it a known one?
    data = resolve_data(data)
    games = list_games(data, split)
    seeds = split_seeds(split, len(games) if count is None else count, seed=seed)
    tasks, forms = [], set()
    for number in seeds:
        game = games[split_of(number)[1] % len(games)]
        content = game.read()
        tasks.append(Task(number, game.task_id, task_of(content)))
        forms.add(put_template(content))
    if len(forms) != 1:
        raise ValueError(f"the games of {data} are of several dialects: {', '.join(sorted(forms))}")
    return dataset.build_rows(
        "alfworld",
        "alfworld",
        tasks,
        split=split,
        options={"data": data, "reward": reward, "max_turns": max_turns},
        instructions=build_instructions(forms.pop(), max_turns),
    )
