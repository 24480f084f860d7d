"""The bridge from gymnasium, tested on environments that gymnasium ships."""

import json
from typing import Any, ClassVar

import gymnasium
import pytest

import env_adapters
from env_adapters import INFO_KEYS, TextEnvironment
from env_adapters.bridges import GymnasiumEnvironment, bridged_rows
from env_adapters.bridges.as_gymnasium import as_gymnasium

DIRECTIONS = {"up": 0, "right": 1, "down": 2, "left": 3}


class CliffWalking(GymnasiumEnvironment):
    """A user's bridge, as in docs/environments/bridges.md."""

    thread_safe: ClassVar[bool] = True
    dataset: ClassVar[str | None] = f"{__name__}:build_rows"

    def __init__(self, *, is_slippery: bool = False, max_turns: int = 40) -> None:
        super().__init__(
            gymnasium.make("CliffWalking-v1", is_slippery=is_slippery),
            name="cliff-walking",
            goal="Walk along a cliff to the goal without falling.",
            rules="You see your row (0 to 3) and column (0 to 11); the goal is at row 3, column 11.",
            actions=DIRECTIONS,
            render=lambda cell: f"Row {cell // 12}, column {cell % 12}.",
            is_success=lambda reward, info: True,
            max_turns=max_turns,
        )


def build_rows(split: str, count: int, *, seed: int = 0, max_turns: int = 40) -> list[dict[str, Any]]:
    return bridged_rows(CliffWalking, split, count, seed=seed, max_turns=max_turns)


class Echo:
    """Minimal object with gymnasium's interface: repeats texts and truncates after three."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.log.append((seed, options))
        self.texts = 0
        return "start", {}

    def step(self, action: Any, /) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.texts += 1
        return action, 0.5, action == "win", self.texts == 3, {"won": action == "win"}

    def close(self) -> None:
        self.log.append("closed")


def echo(env: Echo, **arguments: Any) -> GymnasiumEnvironment:
    words = {"name": "echo", "goal": "Echo.", "rules": "Say something."}
    return GymnasiumEnvironment(env, **{**words, "actions": str, "forms": ["any word"], **arguments})


def test_a_subclass_is_named_by_its_import_path_in_the_rows_of_a_dataset() -> None:
    row = env_adapters.dataset_builder(f"{__name__}:CliffWalking")(split="val", count=2, max_turns=20)[1]
    extra = row["extra_info"]
    assert extra["environment"] == f"{__name__}:CliffWalking" and extra["seed"] == 3
    environment = env_adapters.make(extra["environment"], **json.loads(extra["environment_options"]))
    observation, info = environment.reset(seed=extra["seed"])
    assert observation == "Row 3, column 0." and info["task_id"] == extra["task_id"] == "cliff-walking/3"
    assert [message["content"] for message in row["prompt"]] == [environment.instructions, environment.goal]
    assert "20 turns" in environment.instructions and "up, right, down, left" in environment.instructions
    assert environment.instructions.startswith("You see your row")
    environment.close()


def test_actions_rewards_and_the_end_are_those_of_the_wrapped_environment() -> None:
    environment = CliffWalking()
    environment.reset(seed=0)
    results = [environment.step(f"<action>{text}</action>") for text in ["Up", *["right"] * 11]]
    assert [result[0] for result in results] == [f"Row 2, column {column}." for column in range(12)]
    assert {result[1:4] for result in results} == {(-1.0, False, False)}
    assert environment.step("jump")[1:4] == (0.0, False, False)
    observation, reward, terminated, truncated, info = environment.step("down")
    assert (observation, reward, terminated, truncated) == ("Row 3, column 11.", -1.0, True, False)
    assert info["success"] and info["score"] == 1.0 and info.keys() == INFO_KEYS
    environment.close()


def test_seeds_fix_what_the_wrapped_environment_draws() -> None:
    def walk(environment: TextEnvironment, seed: int) -> list[str]:
        environment.reset(seed=seed)
        return [environment.step(action)[0] for action in ["up", *["right"] * 12]]

    first, second = CliffWalking(is_slippery=True), CliffWalking(is_slippery=True)
    walks = [walk(first, seed) for seed in range(20)]
    assert walks == [walk(second, seed) for seed in range(20)]
    assert len({tuple(way) for way in walks}) > 10
    assert walk(first, 2**62 + 1) == walk(second, 2**62 + 1)


def test_the_default_success_is_a_positive_last_reward() -> None:
    environment = GymnasiumEnvironment(
        gymnasium.make("FrozenLake-v1", is_slippery=False, desc=["SFH", "FFG"]),
        name="lake",
        goal="Cross the lake.",
        rules="Walk.",
        actions={"left": 0, "down": 1, "right": 2, "up": 3},
    )
    for actions, success in ((("down", "right", "right"), True), (("right", "right"), False)):
        environment.reset(seed=0)
        *_, last = (environment.step(action) for action in actions)
        assert last[1:4] == (float(success), True, False) and last[4]["success"] == success
    environment.close()


def test_the_time_limit_of_the_wrapped_environment_truncates() -> None:
    environment = echo(Echo(), max_turns=10)
    environment.reset(seed=0)
    results = [environment.step("on") for _ in range(4)]
    assert [result[2:4] for result in results] == [(False, False), (False, False), (False, True), (False, True)]
    assert not any(result[4]["success"] for result in results)  # an intermediate reward is not success
    environment.reset(seed=0)
    *_, info = [environment.step(text) for text in ("on", "on", "win")][-1]
    assert info["success"] and environment.step("on")[0] == "The episode is over."


def test_text_actions_are_read_by_a_function() -> None:
    inner = Echo()
    environment = echo(inner, actions=int, forms=["a number"], is_success=lambda reward, info: info["won"])
    environment.reset(seed=7, options={"level": 2})
    assert inner.log == [(7, {"level": 2})]
    assert environment.step("<action> 12 </action>")[0] == "12"
    for text in ("", "twelve", "9" * 10_000, "\ud800", "<action>"):
        observation, reward, *_, info = environment.step(text)
        assert not info["action_valid"] and reward == 0.0
        assert "Allowed actions: a number." in observation and observation.endswith("\n12")
    assert inner.texts == 1


def test_the_wrapped_environment_is_closed_once() -> None:
    inner = Echo()
    environment = echo(inner)
    environment.close()
    environment.close()
    assert inner.log == ["closed"]


@pytest.mark.parametrize("arguments", [{"actions": {}}, {"actions": str, "forms": []}])
def test_an_environment_without_actions_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="environment 'echo' has no actions"):
        echo(Echo(), **arguments)


def test_a_round_trip_through_gymnasium_changes_nothing() -> None:
    direct = env_adapters.make("sokoban", difficulty="easy")
    there = as_gymnasium("sokoban", difficulty="easy")
    back = echo(there, forms=["any text"])  # pyright: ignore[reportArgumentType]
    for seed in range(10):
        observation, _ = direct.reset(seed=seed)
        assert back.reset(seed=seed)[0] == observation
        for action in ("up", "right", "nonsense", "down", "left") * 6:
            expected, got = direct.step(action), back.step(f"<action>{action}</action>")
            assert got[0] == expected[0] and got[1:4] == expected[1:4]
            assert got[4]["success"] == expected[4]["success"]
            if expected[2] or expected[3]:
                break
