"""Scripted player for Sokoban: plays a shortest solution, from the same observations as the model."""

from env_adapters.sokoban.level import ACTIONS, Level, move
from env_adapters.sokoban.observation import parse
from env_adapters.sokoban.search import solve


class ScriptedPolicy:
    """Plays a shortest solution from the current position."""

    def __init__(self) -> None:
        """Start without a plan."""
        self._expected: Level | None = None
        self._plan: list[str] = []

    def act(self, observation: str) -> str:
        """Return the next action for an observation of a running episode.

        If the level can no longer be solved, the action is arbitrary.

        Raises:
            ValueError: If the observation shows no room.
        """
        level = parse(observation)
        if level != self._expected or not self._plan:
            self._plan = solve(level) or [ACTIONS[0]]
        action = self._plan.pop(0)
        self._expected = move(level, action)
        return action
