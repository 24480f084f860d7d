"""Where the games are, and what can be read from them without an engine: their names, tasks and the form of a command.

Owns which game a number of a split stands for. Playing is left to ``engine``, making games to ``generator``.
"""

import json
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_adapters.data_folder import data_folder

GENERATED = "generated"
VARIABLE = "ALFWORLD_DATA"
LAYOUT = "json_2.1.1"
SPLIT_FOLDERS = {"train": "train", "val": "valid_unseen"}
GAME_FILE = "game.tw-pddl"
TASK_PREFIX = "Your task is to: "

_DEFAULT_GAMES = "alfworld-games-1"  # count up when the generator makes other ones
_TASK = re.compile(re.escape(TASK_PREFIX) + r"([^\"]*)")
_PUT = re.compile(r"action PutObject \{\s*template :: \"([^\"]*)\"")
_SOLVABLE = re.compile(rb'"solvable": *true')
_LEFT_OUT = ("movable", "Sliced")


@dataclass(frozen=True, slots=True)
class Game:
    """A game's file and the name of its task."""

    path: Path
    task_id: str

    def read(self) -> dict[str, Any]:
        """Return the content: ``pddl_domain``, ``pddl_problem``, ``grammar`` and more."""
        return json.loads(self.path.read_text(encoding="utf-8"))


def resolve_data(data: str | None) -> str:
    """Return the folder of the games, or ``GENERATED``.

    Args:
        data: A folder as ``alfworld-download`` makes it, or ``GENERATED``. None stands for ``$ALFWORLD_DATA`` if there
            are games, else for ``GENERATED``.

    Raises:
        ValueError: If a folder is given that has no games.
    """
    if data == GENERATED:
        return GENERATED
    given = os.environ.get(VARIABLE, "") if data is None else data
    folder = Path(given).expanduser().resolve()
    if given and (folder / LAYOUT / SPLIT_FOLDERS["train"]).is_dir():
        return str(folder)
    if data is None:
        return GENERATED
    raise ValueError(f"data must be {GENERATED!r} or a folder with {LAYOUT}/{SPLIT_FOLDERS['train']}, got {data!r}")


def list_games(data: str, split: str) -> list[Game]:
    """Return the games of a split in an order that depends on their names alone.

    Args:
        data: What ``resolve_data`` returned. The default games are made at the first use.
        split: ``train`` or ``val``.

    Raises:
        ValueError: If the split is unknown or there are none.
    """
    if split not in SPLIT_FOLDERS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_FOLDERS)}")
    folder = _generated() if data == GENERATED else Path(data)
    folder = folder / LAYOUT / SPLIT_FOLDERS[split]
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"*/*/{GAME_FILE}"))
    random.Random(0).shuffle(names)
    games = [
        Game(folder / name, f"alfworld/{folder.name}/{name.removesuffix(f'/{GAME_FILE}')}")
        for name in names
        # As the official loader does; reading is enough, parsing would take ten times as long.
        if not any(word in name for word in _LEFT_OUT) and _SOLVABLE.search((folder / name).read_bytes())
    ]
    if not games:
        raise ValueError(f"no solvable game in {folder}")
    return games


def task_of(game: dict[str, Any]) -> str:
    """Return the task in words, such as "put a clean mug in coffeemachine.", with its full stop."""
    found = _TASK.search(game["grammar"])
    if found is None:
        raise ValueError("the game's grammar has no task")
    return found[1]


def put_form(game: dict[str, Any]) -> str:
    """Return how this game puts an object ``{o}`` into a receptacle ``{r}``: its dialect."""
    found = _PUT.search(game["grammar"])
    if found is None:
        raise ValueError("the game's grammar has no template for PutObject")
    return found[1]


def _generated() -> Path:
    from env_adapters.alfworld.generator import make_default_games  # needs the engine

    return data_folder(_DEFAULT_GAMES, make_default_games)
