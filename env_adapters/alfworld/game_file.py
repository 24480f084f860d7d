"""ALFWorld game files: the layout of data folders, and reading a game's task and dialect without the engine."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYOUT = "json_2.1.1"
SPLIT_FOLDERS = {"train": "train", "val": "valid_unseen"}
HELD_OUT = ("valid_unseen", "valid_seen")
"""Folders of held-out games: in rooms that no training game has, and in rooms of training games."""
GAME_FILE = "game.tw-pddl"
TASK_PREFIX = "Your task is to: "

_TASK = re.compile(re.escape(TASK_PREFIX) + r"([^\"]*)")
_PUT = re.compile(r"action PutObject \{\s*template :: \"([^\"]*)\"")


@dataclass(frozen=True, slots=True)
class Game:
    """Path of a game's file and name of its task."""

    path: Path
    task_id: str

    def read(self) -> dict[str, Any]:
        """Return the content: ``pddl_domain``, ``pddl_problem``, ``grammar`` and more."""
        return json.loads(self.path.read_text(encoding="utf-8"))


def task_of(game: dict[str, Any]) -> str:
    """Return the task in words, such as "put a clean mug in coffeemachine.", with the full stop."""
    found = _TASK.search(game["grammar"])
    if found is None:
        raise ValueError("the game's grammar has no task")
    return found[1]


def put_template(game: dict[str, Any]) -> str:
    """Return the game's command template for putting ``{o}`` into ``{r}``, which identifies its dialect."""
    found = _PUT.search(game["grammar"])
    if found is None:
        raise ValueError("the game's grammar has no template for PutObject")
    return found[1]
