"""Plays ALFWorld games on the TextWorld engine.

Owns the display names of objects and the view of a game that callers get. The faster engine is in ``fast_pddl``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from env_adapters.alfworld.fast_pddl import FastPddlEnv
from env_adapters.alfworld.game_file import TASK_PREFIX, task_of


@dataclass(frozen=True, slots=True)
class View:
    """Visible state of a game.

    Attributes:
        text: The game's answer.
        commands: Admissible commands, sorted.
        won: Whether the task is done.
        changed: Whether the last command changed anything, apart from the record of what has been looked at.
    """

    text: str
    commands: list[str]
    won: bool
    changed: bool = False


class Engine:
    """Plays one game at a time. Not thread-safe: the underlying libraries keep their state in globals."""

    def __init__(self) -> None:
        """Load the planner."""
        self._game = FastPddlEnv(display_names)

    def start(self, game: dict[str, Any]) -> View:
        """Start a game.

        Args:
            game: Content of its file.
        """
        task = TASK_PREFIX + task_of(game)
        # Parsing a grammar takes longer than all other steps. Most grammars differ only in the task sentence, so
        # without it the parsed grammar can be cached.
        self._game.load({**game, "grammar": game["grammar"].replace(task, TASK_PREFIX)})
        self._game.reset()
        view = self._view()
        return View(view.text.replace(TASK_PREFIX, task), view.commands, view.won)

    def play(self, command: str) -> View:
        """Play an admissible command; any other text has no effect."""
        before = self._game.facts()
        self._game.step(command)
        return self._view(changed=self._game.facts() != before)

    def close(self) -> None:
        """Return the planner for use by the next engine of this process; may be called more than once."""
        self._game.close()

    def _view(self, *, changed: bool = False) -> View:
        state: Any = self._game.state
        return View(state["feedback"], state["admissible_commands"], state["won"], changed)


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the names that ALFWorld displays for the ids of a game, such as ``mug 2``.

    Objects of a type are numbered in the reverse order of their ids.
    """
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    for id_ in sorted(ids, reverse=True):
        kind, bar, _ = id_.partition("_bar_")
        if bar:
            kind += "basin" if "basin" in id_ else ""
            counts[kind] += 1
        names[id_] = f"{kind} {counts[kind] or ''}"
    return names
