"""An environment that raises in every episode, for a real run."""

from typing import Any, ClassVar

from env_adapters.dataset import Task, split_seeds
from env_adapters.dataset import build_rows as rows_of
from examples.own_environment.guess import GOAL, GuessEnvironment, build_instructions


class BrokenEnvironment(GuessEnvironment):
    """Raises at the first step."""

    dataset: ClassVar[str | None] = "broken:build_rows"

    def _read(self, action_text: str) -> str | None:
        raise LookupError("the secret is lost")


def build_rows(split: str, count: int = 2, *, seed: int = 0, max_turns: int = 7) -> list[dict[str, Any]]:
    """Build the dataset rows of one split."""
    return rows_of(
        "broken:BrokenEnvironment",
        "broken",
        [Task(number, f"broken/{number}", GOAL) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"max_turns": max_turns},
        instructions=build_instructions(max_turns),
    )
