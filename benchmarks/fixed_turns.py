"""Environment whose episodes have a fixed number of turns, so that every arm of a benchmark does the same work."""

import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from env_adapters.base import Transition
from env_adapters.vaults.dataset import build_rows
from env_adapters.vaults.environment import VaultsEnvironment
from env_adapters.vaults.world import FAMILIES, KINDS, MOVES

LENGTHS = 8
"""Different lengths of prompts."""


class FixedTurns(VaultsEnvironment):
    """Vaults that go on after they have opened, and where every text is some move."""

    def __init__(self, *, pause: float = 0.0, start: float = 0.0, **options: Any) -> None:
        """Set the options.

        Args:
            pause: Most seconds that a turn takes, drawn evenly from 0.
            start: Most seconds that the beginning of an episode takes, likewise. Without it all episodes of a step end
                their turns at the same moment, which no others do: the engine then has all of them in a batch, or
                none, and computes less than where some of them wait for a guide first.
            **options: Those of vaults.
        """
        super().__init__(**options)
        self._pause, self._longest_start = pause, start

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        time.sleep(random.uniform(0, self._longest_start))
        return super()._start(seed, options)

    def _read(self, action_text: str) -> str | None:
        return next((move for move in MOVES if move in action_text), MOVES[0])

    def _play(self, action: str) -> Transition:
        assert self._state is not None
        time.sleep(random.uniform(0, self._pause))
        if self._state.success:
            return replace(self._state, reward=0.0, effective=False)
        return replace(super()._play(action), terminated=False)


def lessons(*, world: int = 1, each: int = 4) -> Iterator[tuple[str, str, str]]:
    """Yield task, title and content of ``each`` lessons about every kind of every family of a world."""
    for family, kind, number in itertools.product(FAMILIES, KINDS, range(each)):
        yield f"vaults/{family}", f"{kind} {family}", f"worked: first {MOVES[number % len(MOVES)]}, number {number}"


def fixed_turns_rows(
    count: int, *, turns: int, world: int = 1, pause: float = 0.0, start: float = 0.0, longer: int = 0
) -> list[dict[str, Any]]:
    """Return rows of all families of a world, ``count`` of each, whose episodes have ``turns`` turns.

    Their prompts have different lengths, as those of other tasks have: where all are equal nothing is padded, and an
    update needs no mask, which makes it faster, but only in an arm without experience. All have ``longer`` words more.
    """
    rows = [
        row for family in FAMILIES for row in build_rows("train", count, world=world, family=family, max_turns=turns)
    ]
    for number, row in enumerate(rows):
        row["prompt"][0]["content"] += " open" * (number % LENGTHS + longer)
        options = json.loads(row["extra_info"]["environment_options"])
        row["extra_info"]["environment_options"] = json.dumps(options | {"pause": pause, "start": start})
        row["extra_info"]["environment"] = "benchmarks.fixed_turns:FixedTurns"
    return rows
