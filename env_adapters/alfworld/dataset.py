"""Dataset rows for ALFWorld; needs no engine, except to generate the default games."""

from typing import Any

from env_adapters import dataset
from env_adapters.alfworld.game_file import put_template, task_of
from env_adapters.alfworld.games import list_games, resolve_data, source_name
from env_adapters.alfworld.prompt import build_instructions
from env_adapters.alfworld.protocols import PROTOCOLS
from env_adapters.alfworld.rewards import failure_reward
from env_adapters.dataset import Task, split_of, split_seeds
from env_adapters.protocols import choose


def build_rows(
    split: str,
    count: int | None = None,
    *,
    data: str | None = None,
    protocol: str = "paper",
    reward: str | None = None,
    held_out: str | None = None,
    seed: int = 0,
    max_turns: int | None = None,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``.
        count: Number of rows, at most 2**20; None means one per game of the split. Games repeat if there are fewer.
        data: Location of the games, as for the environment. The rows contain the resolved value.
        protocol: As for the environment; likewise ``reward``, ``held_out`` and ``max_turns``.
        reward: Reward of an episode that ends without success.
        held_out: Folder of the games of ``val``.
        seed: Selects the episodes, in [0, 2**40).
        max_turns: Turn limit of each episode.

    Raises:
        ValueError: If an argument is out of range, there are no games, or the games have more than one dialect.
    """
    chosen, options = choose(PROTOCOLS, protocol, reward=reward, held_out=held_out, max_turns=max_turns)
    failure_reward(options["reward"])  # raises for an unknown value
    data = resolve_data(data)
    games = list_games(data, split, options["held_out"])
    seeds = split_seeds(split, len(games) if count is None else count, seed=seed)
    tasks, forms = [], set()
    for number in seeds:
        game = games[split_of(number)[1] % len(games)]
        content = game.read()
        tasks.append(Task(number, game.task_id, task_of(content)))
        forms.add(put_template(content))
    if len(forms) != 1:
        raise ValueError(f"the games of {data} have several dialects: {', '.join(sorted(forms))}")
    return dataset.build_rows(
        "alfworld",
        source_name(data),
        tasks,
        split=split,
        options={"data": data, "protocol": protocol, **options},
        instructions=chosen.reword(build_instructions(forms.pop(), options["max_turns"])),
    )
