"""The bridge from GEM, tested on objects with the interface of axon-rl/gem 0.1.0 at commit 4069f2f."""

import random
import re
from typing import Any

import pytest

from env_adapters.bridges import GemEnvironment


class Guess:
    """A game that follows GEM's conventions: global random generator, explains itself, reads the whole message.

    The last turn rewards a near miss, and is both terminated and truncated.
    """

    def __init__(self, turns: int = 4) -> None:
        self.turns = turns

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        if seed is not None:
            assert seed < 2**32  # what numpy.random.seed takes
            random.seed(seed)
        self.number, self.turn = random.randint(1, 20), 0
        return "Guess a number from 1 to 20 as \\boxed{n}.\n", {"suffix": "Enter your guess."}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        info = {"suffix": "Enter your next guess."}
        found = re.findall(r"\\boxed{(\d+)}", action)
        if not found:
            return "No guess.", -0.1, True, self.turn == self.turns, info
        guess = int(found[-1])
        if guess == self.number:
            return "Right.", 1.0, True, False, info
        if self.turn == self.turns:
            return "Too late.", 1 - abs(guess - self.number) / 19, True, True, info
        return f"It is {'lower' if guess > self.number else 'higher'}.", 0.0, False, False, info


class Question:
    """One turn, always both terminated and truncated. Has a method ``close``."""

    closed = 0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return "6 * 7?", {"prefix": "Answer this:\n"}

    def step(self, action: str) -> tuple[str, int, bool, bool, dict[str, Any]]:
        return "<over>", int("42" in action), True, True, {}

    def close(self) -> None:
        self.closed += 1


class Sums(Question):
    """Says in its info which question it asks."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return "6 * 7?", {"goal": f"Find {seed} * 7.", "task_id": f"times/{seed}"}


def test_an_environment_can_name_its_tasks() -> None:
    """Experience is retrieved for the goal: with one goal for all episodes all would get the same."""
    environment = GemEnvironment(Sums(), name="sums", goal="Answer.")
    assert environment.reset(seed=3)[1].items() >= {"goal": "Find 3 * 7.", "task_id": "times/3"}.items()


def guess(**arguments: Any) -> GemEnvironment:
    return GemEnvironment(Guess(), name="guess", goal="Find the number.", **arguments)


def test_observations_and_answers() -> None:
    environment = guess(max_turns=9)
    observation, info = environment.reset(seed=0)
    assert observation == "Guess a number from 1 to 20 as \\boxed{n}.\nEnter your guess."
    assert info["task_id"] == "guess/0" and info["admissible_actions"] == ["any text"]
    assert "9 turns" in environment.instructions and "<action>" not in environment.instructions
    random.seed(4)
    number = random.randint(1, 20)
    environment.reset(seed=4)
    observation, reward, terminated, truncated, info = environment.step("<think>?</think>I say \\boxed{21}")
    assert observation == "It is lower.\nEnter your next guess." and not terminated and info["action_valid"]
    observation, reward, terminated, truncated, info = environment.step(f"\\boxed{{{number}}}")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_text_inside_the_thoughts_is_not_an_answer() -> None:
    environment = guess()
    environment.reset(seed=4)
    assert environment.step("<think>\\boxed{5}</think>I do not know.")[1:3] == (-0.1, True)


def test_a_near_miss_is_rewarded_but_is_not_success() -> None:
    environment = guess()
    environment.reset(seed=1)
    results = [environment.step("\\boxed{21}") for _ in range(4)]
    assert 0 <= results[-1][1] < 1 and results[-1][2:4] == (True, False) and not results[-1][4]["success"]


def test_unreadable_answers_are_passed_to_the_environment() -> None:
    environment = guess()
    for text in ("", "\ud800", "\x00", "x" * 1_000_000, "<action>5</action>"):
        environment.reset(seed=1)
        assert environment.step(text)[1:4] == (-0.1, True, False)


def test_the_bridges_turn_limit_truncates() -> None:
    environment = guess(max_turns=2)
    environment.reset(seed=1)
    assert [environment.step("\\boxed{21}")[2:4] for _ in range(2)] == [(False, False), (False, True)]


def test_large_seeds_give_reproducible_episodes() -> None:
    environment = guess()
    for seed in (2**62, 2**62 + 1, 2**32 + 5):
        first = environment.reset(seed=seed)[0], [environment.step("\\boxed{10}")[0] for _ in range(3)]
        again = environment.reset(seed=seed)[0], [environment.step("\\boxed{10}")[0] for _ in range(3)]
        assert first == again
    assert not GemEnvironment.thread_safe  # GEM uses the process-wide generator


def test_a_single_turn() -> None:
    inner = Question()
    environment = GemEnvironment(inner, name="q", goal="Answer.", rules="Answer in words.")
    assert environment.instructions.startswith("Answer in words.\n")
    assert environment.reset(seed=0)[0] == "Answer this:\n6 * 7?"
    assert environment.step("It is 42.")[4]["success"]
    environment.reset(seed=0)
    assert not environment.step("It is 41.")[4]["success"]
    environment.close()
    environment.close()
    assert inner.closed == 1


def test_reset_options_are_refused() -> None:
    with pytest.raises(ValueError, match="no reset option 'level'"):
        guess().reset(seed=0, options={"level": 1})
