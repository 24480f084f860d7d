"""FrozenLake as a text environment, based on gymnasium's FrozenLake-v1; the smallest family, useful as an example.

Owns the map of a seed and its rendering. The texts are in ``task``; the game logic is gymnasium's.
"""

import hashlib
from itertools import count
from typing import Any, ClassVar

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from env_adapters.base import TextEnvironment, Transition
from env_adapters.frozenlake.protocols import PROTOCOLS
from env_adapters.frozenlake.task import ACTIONS, Task
from env_adapters.protocols import choose

_SYMBOLS = str.maketrans({"S": "_", "F": "_", "H": "O"})


class FrozenLakeEnvironment(TextEnvironment):
    """Reach the goal; reward 1 for that, else 0."""

    thread_safe: ClassVar[bool] = True  # each game has a random generator of its own
    dataset: ClassVar[str | None] = "env_adapters.frozenlake.dataset:build_rows"

    def __init__(
        self,
        *,
        size: int = 4,
        protocol: str = "paper",
        is_slippery: bool | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Set the options of the lake.

        Args:
            size: Cells along each side, from 4 to 8.
            protocol: A key of ``env_adapters.frozenlake.protocols.PROTOCOLS``, with the defaults of the options below.
            is_slippery: Whether a move goes in the intended direction or to either side of it, each with probability
                1/3.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If an option is out of range.
        """
        chosen, options = choose(PROTOCOLS, protocol, is_slippery=is_slippery, max_turns=max_turns)
        super().__init__(max_turns=options["max_turns"], protocol=chosen)
        self._task = Task(size, options["is_slippery"])
        self.instructions = chosen.reword(self._task.instructions(self.max_turns))
        self.goal = self._task.goal
        self.admissible_actions = list(ACTIONS)

    def close(self) -> None:
        """Do nothing; there is nothing to free."""

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"frozenlake has no reset option {next(iter(options))!r}; it has none")
        self.task_id = f"{self._task.name}/{seed}"
        self._map = draw_map(seed, self._task.size)
        self._game = FrozenLakeEnv(desc=self._map, is_slippery=self._task.is_slippery)
        self._cell, _ = self._game.reset(seed=seed)
        return self._render()

    def _play(self, action: str) -> Transition:
        before = self._cell
        self._cell, reward, terminated, _, _ = self._game.step(ACTIONS.index(action))
        if terminated:
            won = reward > 0
            text = "You reached the goal. You won." if won else "You fell into a hole. You lost."
            return Transition(text, float(won), True, success=won, score=float(won))
        return Transition(self._render(), effective=self._cell != before)

    def _render(self) -> str:
        symbols = list("".join(self._map).translate(_SYMBOLS))
        symbols[self._cell] = "@"
        size = self._task.size
        rows = [" ".join(symbols[start : start + size]) for start in range(0, size * size, size)]
        return "\n".join([*rows, "Legend: @ you, G goal, O hole, _ ice"])


def draw_map(seed: int, size: int) -> list[str]:
    """Return a solvable map in gymnasium's notation that belongs to the split of ``seed``."""
    # Multiples of 2**63, which no seed reaches, keep the attempts of different seeds apart.
    lakes = (generate_random_map(size, seed=seed + attempt * 2**63) for attempt in count())
    return next(lake for lake in lakes if side(lake) == seed % 2)


def side(lake: list[str]) -> int:
    """Return the split of a map: 0 for even seeds (training), 1 for odd seeds (held out).

    Different seeds can draw the same small map, so the parity of seeds alone would not keep the splits disjoint. A map
    and its mirror image, which has the same start and goal, are in the same split.
    """
    mirrored = ["".join(column) for column in zip(*lake, strict=True)]
    return hashlib.sha256("".join(min(lake, mirrored)).encode()).digest()[0] % 2
