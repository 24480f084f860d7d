"""One game on TextWorld's engine: commands in, texts out.

Owns the names that things have in the game and what a caller sees of it. How it is made fast is in ``fast_pddl``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from env_adapters.alfworld.fast_pddl import FastPddlEnv
from env_adapters.alfworld.game_file import TASK_PREFIX, task_of


@dataclass(frozen=True, slots=True)
class View:
    """What can be seen of a game.

    Attributes:
        text: The game's answer.
        commands: What can be done now, sorted.
        won: Whether the task is done.
        changed: Whether the last command changed anything, apart from what has been looked at.
    """

    text: str
    commands: list[str]
    won: bool
    changed: bool = False


class Engine:
    """Plays one game at a time. Not for threads: the libraries below keep their state in globals."""

    def __init__(self) -> None:
        """Load the planner."""
        self._game = FastPddlEnv(display_names)

    def start(self, game: dict[str, Any]) -> View:
        """Start a game.

        Args:
            game: Content of its file.
        """
        task = TASK_PREFIX + task_of(game)
        # Most games differ in nothing else of their grammar, and to parse one takes longer than all the rest.
        self._game.load({**game, "grammar": game["grammar"].replace(task, TASK_PREFIX)})
        self._game.reset()
        view = self._view()
        return View(view.text.replace(TASK_PREFIX, task), view.commands, view.won)

    def play(self, command: str) -> View:
        """Play one of the commands that can be done now; for any other text nothing happens."""
        before = self._game.facts()
        self._game.step(command)
        return self._view(changed=self._game.facts() != before)

    def close(self) -> None:
        """Leave the planner to the next engine of this process; harmless when called again."""
        self._game.close()

    def _view(self, *, changed: bool = False) -> View:
        state: Any = self._game.state
        return View(state["feedback"], state["admissible_commands"], state["won"], changed)


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the names that ALFWorld shows for the ids of a game, such as ``mug 2``.

    Things of a kind are numbered against the order of their ids.
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
