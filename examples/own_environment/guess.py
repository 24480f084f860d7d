"""Example of a custom environment: guess a number from hints."""

import random
from typing import Any, ClassVar

from env_adapters import TextEnvironment, Transition
from env_adapters.dataset import Task, split_of, split_seeds
from env_adapters.dataset import build_rows as rows_of
from env_adapters.parsing import extract_action

GOAL = "Find a secret number from 1 to 100; a wrong guess is answered with higher or lower."

# Each number is a task, and half of them are held out: even seeds are training episodes, odd seeds are held out.
_NUMBERS = random.Random(1).sample(range(1, 101), 100)
SECRETS = {"train": _NUMBERS[:50], "val": _NUMBERS[50:]}


def build_instructions(max_turns: int) -> str:
    """Return the system prompt."""
    return (
        "I think of a whole number from 1 to 100. Guess it; after a wrong guess I say whether it is higher or lower.\n"
        f"You have {max_turns} turns. First think inside <think> </think>, then answer with one number inside "
        "<action> </action>, for example:\n<think>I halve the range.</think><action>50</action>"
    )


class GuessEnvironment(TextEnvironment):
    """Guess the number; reward 1 for the right guess, else 0."""

    thread_safe: ClassVar[bool] = True
    dataset: ClassVar[str | None] = "examples.own_environment.guess:build_rows"

    def __init__(self, *, max_turns: int = 7) -> None:
        """Set the turn limit; seven turns are enough for any number."""
        super().__init__(max_turns=max_turns)
        self.instructions = build_instructions(max_turns)
        self.goal = GOAL
        self.admissible_actions = ["a number from 1 to 100"]

    def close(self) -> None:
        """Do nothing; there is nothing to free."""

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        split, number = split_of(seed)
        self.task_id = f"guess/{seed}"
        self._secret = SECRETS[split][number % 50]
        return "What is your first guess?"

    def _read(self, action_text: str) -> str | None:
        text = extract_action(action_text)
        return text if text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= 100 else None

    def _play(self, action: str) -> Transition:
        if int(action) == self._secret:
            return Transition("That is the number. You won.", 1.0, terminated=True, success=True, score=1.0)
        return Transition(f"The number is {'higher' if self._secret > int(action) else 'lower'} than {int(action)}.")


def build_rows(split: str, count: int = 50, *, seed: int = 0, max_turns: int = 7) -> list[dict[str, Any]]:
    """Build the dataset rows of one split."""
    return rows_of(
        "examples.own_environment.guess:GuessEnvironment",
        "guess",
        [Task(number, f"guess/{number}", GOAL) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"max_turns": max_turns},
        instructions=build_instructions(max_turns),
    )
