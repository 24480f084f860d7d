"""Finds the ALFWorld games of a split and puts them in a fixed order.

Owns the choice of the data folder. ``game_file`` reads a game, ``engine`` plays it, ``generator`` makes new ones.
"""

import os
import random
import re
from pathlib import Path

from env_adapters.alfworld.game_file import GAME_FILE, LAYOUT, SPLIT_FOLDERS, Game
from env_adapters.data_folder import data_folder

GENERATED = "generated"
VARIABLE = "ALFWORLD_DATA"
_DEFAULT_GAMES = "alfworld-games-1"  # increase the number when the generator's output changes
_SOLVABLE = re.compile(rb'"solvable": *true')
_LEFT_OUT = ("movable", "Sliced")


def resolve_data(data: str | None) -> str:
    """Return the folder of the games, or ``GENERATED``.

    Args:
        data: A folder as created by ``alfworld-download``, or ``GENERATED``. None means ``$ALFWORLD_DATA`` if that
            folder has games, else ``GENERATED``.

    Raises:
        ValueError: If the given folder has no games.
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
        data: Value returned by ``resolve_data``. The default games are generated on first use.
        split: ``train`` or ``val``.

    Raises:
        ValueError: If the split is unknown or there are no games.
    """
    if split not in SPLIT_FOLDERS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_FOLDERS)}")
    folder = _generated() if data == GENERATED else Path(data)
    folder = folder / LAYOUT / SPLIT_FOLDERS[split]
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"*/*/{GAME_FILE}"))
    # Shuffled, because sorted names group the games by type; with a fixed seed, because an environment seed must select
    # the same game in every process.
    random.Random(0).shuffle(names)
    games = [
        Game(folder / name, f"alfworld/{folder.name}/{name.removesuffix(f'/{GAME_FILE}')}")
        for name in names
        # The official loader's filter. Searching the bytes is enough; parsing the files would take ten times as long.
        if not any(word in name for word in _LEFT_OUT) and _SOLVABLE.search((folder / name).read_bytes())
    ]
    if not games:
        raise ValueError(f"no solvable game in {folder}")
    return games


def _generated() -> Path:
    from env_adapters.alfworld.generator import make_default_games  # needs the engine

    return data_folder(_DEFAULT_GAMES, make_default_games)
