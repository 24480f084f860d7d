"""Rules that ``TextEnvironment`` enforces, checked on a minimal environment."""

from dataclasses import replace
from typing import Any

import pytest

from env_adapters import INFO_KEYS, TextEnvironment, Transition


class Countdown(TextEnvironment):
    """Say 'down' three times to win."""

    instructions = "Count down."

    def __init__(self, *, max_turns: int = 5) -> None:
        super().__init__(max_turns=max_turns)
        self.goal = "Reach zero."
        self.admissible_actions = ["down", "wait"]
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        self.task_id = f"countdown/{seed}"
        self.left = 3
        return "3 left"

    def _play(self, action: str) -> Transition:
        self.left -= action == "down"
        won = self.left == 0
        return Transition(f"{self.left} left", float(won), won, won, float(won), effective=action == "down")


def test_an_episode_to_the_goal() -> None:
    environment = Countdown()
    observation, info = environment.reset(seed=7)
    assert observation == "3 left"
    assert info == {
        "success": False,
        "score": 0.0,
        "action_valid": True,
        "action_effective": False,
        "admissible_actions": ["down", "wait"],
        "task_id": "countdown/7",
        "goal": "Reach zero.",
    }
    environment.step("<action>down</action>")
    observation, reward, terminated, truncated, info = environment.step("wait")
    assert (observation, reward, terminated, truncated) == ("2 left", 0.0, False, False)
    assert info["action_valid"] and not info["action_effective"]
    environment.step("down")
    observation, reward, terminated, truncated, info = environment.step("down")
    assert (observation, reward, terminated, truncated) == ("0 left", 1.0, True, False)
    assert info["success"] and info["score"] == 1.0 and info.keys() == INFO_KEYS


def test_an_invalid_action_is_explained_and_costs_a_turn_but_is_not_played() -> None:
    environment = Countdown(max_turns=2)
    environment.reset(seed=0)
    observation, reward, terminated, truncated, info = environment.step("<action>up</action>")
    assert "Invalid action" in observation and "down, wait" in observation and observation.endswith("3 left")
    assert (reward, terminated, truncated, environment.left) == (0.0, False, False, 3)
    assert not info["action_valid"] and not info["action_effective"] and info.keys() == INFO_KEYS
    assert environment.step("up")[2:4] == (False, True)


def test_the_turn_limit_truncates() -> None:
    environment = Countdown(max_turns=3)
    environment.reset(seed=0)
    assert [environment.step("wait")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_reaching_the_goal_on_the_last_turn_is_not_truncation() -> None:
    environment = Countdown(max_turns=3)
    environment.reset(seed=0)
    assert [environment.step("down")[2:4] for _ in range(3)][-1] == (True, False)


@pytest.mark.parametrize(("action", "flags"), [("down", (True, False)), ("wait", (False, True))])
def test_nothing_happens_after_the_end(action: str, flags: tuple[bool, bool]) -> None:
    environment = Countdown(max_turns=3)
    environment.reset(seed=0)
    for _ in range(3):
        environment.step(action)
    left = environment.left
    observation, reward, terminated, truncated, info = environment.step("down")
    assert (observation, reward, (terminated, truncated), environment.left) == (
        "The episode is over.",
        0.0,
        flags,
        left,
    )
    assert info["success"] is (action == "down")


class Late(Countdown):
    """Truncation costs a penalty, the number left."""

    def _settle(self) -> Transition:
        return Transition("too late", reward=-float(self.left), score=-1.0)


@pytest.mark.parametrize(("last", "reward"), [("down", -2.0), ("wait", -3.0), ("nonsense", -3.0)])
def test_the_settled_reward_is_added_to_the_last_step(last: str, reward: float) -> None:
    environment = Late(max_turns=2)
    environment.reset(seed=0)
    assert environment.step("wait")[1] == 0.0
    observation, got, terminated, truncated, info = environment.step(last)
    assert (got, terminated, truncated, info["score"]) == (reward, False, True, -1.0)
    assert observation.endswith("left\ntoo late") and info["action_valid"] is (last != "nonsense")
    assert environment.step("down")[1] == 0.0, "settled more than once"


@pytest.mark.parametrize("won", [False, True])
def test_an_environment_can_truncate_an_episode_itself(won: bool) -> None:
    class Limited(Late):
        def _play(self, action: str) -> Transition:
            return replace(super()._play(action), terminated=won, truncated=True)

    environment = Limited(max_turns=9)
    environment.reset(seed=0)
    _, reward, terminated, truncated, info = environment.step("down")
    # A terminated episode is not truncated too, so it has no penalty (2, the number left).
    assert (reward, terminated, truncated) == (0.0, True, False) if won else (-2.0, False, True)
    assert info["score"] == (0.0 if won else -1.0)
    assert environment.step("down")[1:4] == (0.0, won, not won) and environment.left == 2


def test_a_caller_can_truncate_an_episode() -> None:
    environment = Late(max_turns=5)
    environment.reset(seed=0)
    environment.step("down")
    observation, reward, terminated, truncated, info = environment.truncate()
    assert (reward, terminated, truncated) == (-2.0, False, True)
    assert observation == "The episode is over.\ntoo late"
    assert info["score"] == -1.0 and info.keys() == INFO_KEYS
    assert environment.truncate()[1:4] == (0.0, False, True)
    assert environment.step("down")[1:4] == (0.0, False, True) and environment.left == 2


def test_truncating_a_finished_episode_changes_nothing() -> None:
    environment = Late(max_turns=5)
    environment.reset(seed=0)
    for _ in range(3):
        environment.step("down")
    assert environment.truncate()[1:4] == (0.0, True, False)
    assert not environment.step("down")[1]


def test_reset_starts_over() -> None:
    environment = Countdown(max_turns=1)
    environment.reset(seed=0)
    environment.step("down")
    environment.reset(seed=1)
    observation, _, _, _, info = environment.step("down")
    assert observation == "2 left" and info["task_id"] == "countdown/1"


def test_without_a_seed_a_random_one_is_drawn() -> None:
    environment = Countdown()
    assert len({environment.reset()[1]["task_id"] for _ in range(5)}) == 5


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="before reset"):
        Countdown().step("down")
    with pytest.raises(RuntimeError, match="before reset"):
        Countdown().truncate()


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=str(seed)):
        Countdown().reset(seed=seed)


@pytest.mark.parametrize("max_turns", [0, -3, 1.5, True, "30"])
def test_a_bad_turn_limit_is_refused(max_turns: Any) -> None:
    with pytest.raises(ValueError, match=f"max_turns must be a positive integer, got {max_turns!r}"):
        Countdown(max_turns=max_turns)
