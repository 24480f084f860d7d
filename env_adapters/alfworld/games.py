"""Finds the ALFWorld games of a split and puts them in a fixed order.

Owns the choice of the data folder. ``game_file`` reads a game, ``engine`` plays it, ``generator`` makes new ones.
"""

import os
import random
import re
from pathlib import Path

from env_adapters.alfworld.game_file import GAME_FILE, HELD_OUT, LAYOUT, SPLIT_FOLDERS, Game
from env_adapters.data_folder import data_folder

GENERATED = "generated"
VARIABLE = "ALFWORLD_DATA"
_DEFAULT_GAMES = "alfworld-games-1"  # increase the number when the generator's output changes
_SOLVABLE = re.compile(rb'"solvable": *true')
_LEFT_OUT = ("movable", "Sliced")


def resolve_data(data: str | None) -> str:
    """Return the folder of the games, or ``GENERATED``.

    Args:
        data: A folder as created by ``alfworld-download``, or ``GENERATED``. None means ``$ALFWORLD_DATA``, else the
            folder into which ``alfworld-download`` writes by default if it has games, else ``GENERATED``.

    Raises:
        ValueError: If the given folder, or that of the variable, has no games.
    """
    if data == GENERATED or (data is None and os.environ.get(VARIABLE) == GENERATED):
        return GENERATED
    default = str(Path.home() / ".cache" / "alfworld")
    given = os.environ.get(VARIABLE) or default if data is None else data
    folder = Path(given).expanduser().resolve()
    if given and (folder / LAYOUT / SPLIT_FOLDERS["train"]).is_dir():
        return str(folder)
    # Importing alfworld sets the variable to its default folder, so that there it is no choice of the user's.
    if data is None and folder == Path(default).resolve():
        return GENERATED
    name = VARIABLE if data is None else "data"
    raise ValueError(f"{name} must be {GENERATED!r} or a folder with {LAYOUT}/{SPLIT_FOLDERS['train']}, got {given!r}")


def source_name(data: str) -> str:
    """Return the name of the games in metrics; results on generated games must not pass for the benchmark's."""
    return "alfworld-generated" if data == GENERATED else "alfworld"


def list_games(data: str, split: str, held_out: str = HELD_OUT[0]) -> list[Game]:
    """Return the games of a split in an order that depends on their names alone.

    Args:
        data: Value returned by ``resolve_data``. The default games are generated on first use.
        split: ``train`` or ``val``.
        held_out: Folder of ``val``, one of ``HELD_OUT``.

    Raises:
        ValueError: If the split or the folder is unknown or there are no games.
    """
    if split not in SPLIT_FOLDERS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_FOLDERS)}")
    folder = _generated() if data == GENERATED else Path(data)
    if held_out not in HELD_OUT:
        raise ValueError(f"unknown held_out {held_out!r}; known: {', '.join(HELD_OUT)}")
    folder = folder / LAYOUT / (held_out if split == "val" else SPLIT_FOLDERS[split])
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
