"""Scripted player for vaults: enters a known code, and looks for the rest without trying a wrong move twice."""

import random
import re
from collections.abc import Sequence

from env_adapters.vaults.world import MOVES


class ScriptedPolicy:
    """Plays from the same observations as the model.

    With the whole code it wins every episode in as many turns as the code has moves. Without one it tries the moves
    that have not failed since the last lamp, in random order.
    """

    def __init__(self, code: Sequence[str] = (), *, seed: int = 0) -> None:
        """Start an episode.

        Args:
            code: First moves of the code, as far as they are known; empty for none.
            seed: Chooses the order of other moves.
        """
        self._code = code
        self._random = random.Random(seed)
        self._failed: set[str] = set()
        self._lit = 0
        self._last = ""

    def act(self, observation: str) -> str:
        """Return the next action for an observation of a running episode.

        Raises:
            ValueError: If the observation does not say how many lamps are lit.
        """
        shown = re.search(r"Lamps lit: (\d+)", observation)
        if shown is None:
            raise ValueError(f"not an observation of a vault: {observation!r}")
        lit = int(shown[1])
        if lit != self._lit:
            self._failed.clear()
        elif self._last:
            self._failed.add(self._last)
        self._lit = lit
        known = self._code[lit] if lit < len(self._code) else ""
        if known and known not in self._failed:
            self._last = known
        else:
            self._last = self._random.choice([move for move in MOVES if move not in self._failed])
        return self._last
