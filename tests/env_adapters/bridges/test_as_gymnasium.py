"""The bridge from text environments to gymnasium, tested with gymnasium's own checker."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import env_adapters
from env_adapters import TextEnvironment, Transition
from env_adapters.bridges.as_gymnasium import LONGEST_ACTION, AnyText, TextGymnasium, as_gymnasium

ROOT = Path(__file__).parents[3]


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register("Text-v0", entry_point="env_adapters.bridges.as_gymnasium:as_gymnasium")
    yield "Text-v0"
    del gymnasium.registry["Text-v0"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("sokoban", {}), ("frozenlake", {"is_slippery": True}), ("minihack", {"variant": "room-random"})],
)
def test_gymnasiums_checker_passes_without_warnings(registered: str, name: str, options: dict[str, Any]) -> None:
    # Through the registry, because the checker compares episodes only of environments with a spec.
    environment = gymnasium.make(registered, name=name, **options, disable_env_checker=True).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment)
    assert isinstance(environment, TextGymnasium)
    assert environment.environment.instructions.startswith("You ")
    environment.close()


def test_an_episode_equals_that_of_the_text_environment() -> None:
    ours, theirs = env_adapters.make("frozenlake"), as_gymnasium("frozenlake", render_mode="ansi")
    assert theirs.reset(seed=9) == ours.reset(seed=9)
    for action in ("right", "<think>?</think><action>down</action>", "fly", "left"):
        expected = ours.step(action)
        assert theirs.step(action) == expected and theirs.render() == expected[0]
    assert as_gymnasium("frozenlake").render() is None
    theirs.close()


def test_drawn_episodes_are_reproducible_and_stay_in_the_split_of_the_seed() -> None:
    environment = as_gymnasium("sokoban")

    def task_ids(seed: int | None) -> list[str]:
        return [environment.reset(seed=seed if index == 0 else None)[1]["task_id"] for index in range(8)]

    assert task_ids(5) == task_ids(5) != task_ids(7)
    for seed, parity in ((5, 1), (4, 0)):
        numbers = [int(task_id.rpartition("/")[2]) for task_id in task_ids(seed)]
        assert len(set(numbers)) == 8 and {number % 2 for number in numbers} == {parity}
    untouched = as_gymnasium("sokoban")
    assert int(untouched.reset()[1]["task_id"].rpartition("/")[2]) % 2 == 0


def test_any_unicode_is_in_the_space_and_samples_are_ascii() -> None:
    space = AnyText(100, seed=0)
    for text in ("", "\U0001f409", "\ud800", "\x00", "é" * 100):
        assert text in space
    for other in ("x" * 101, b"x", None, ["x"]):
        assert other not in space
    samples = [space.sample() for _ in range(200)]
    assert all(sample in space and (sample.isprintable() or "\n" in sample) and sample.isascii() for sample in samples)
    assert len({len(sample) for sample in samples}) > 50
    assert space == AnyText(100) and space != AnyText(99) and space != gymnasium.spaces.Text(100)
    assert repr(space) == "AnyText(100)"
    assert len(as_gymnasium("sokoban").action_space.sample()) <= LONGEST_ACTION


class Dragon(TextEnvironment):
    """Environment whose texts are not ASCII."""

    def close(self) -> None:
        pass

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        self.instructions = self.goal = self.task_id = "龙"
        self.admissible_actions = ["逃"]
        return "一条龙 \U0001f409"

    def _play(self, action: str) -> Transition:
        return Transition("你逃了", 1.0, terminated=True, success=True)


def test_an_environment_in_unicode() -> None:
    environment = as_gymnasium(f"{__name__}:Dragon")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*alternative render modes.*")  # it has no spec
        check_env(environment)
    environment.reset(seed=0)
    assert environment.step("<action>逃</action>")[1:3] == (1.0, True)


def test_it_runs_in_gymnasiums_vector_environments() -> None:
    vector = gymnasium.vector.SyncVectorEnv([lambda: as_gymnasium("frozenlake") for _ in range(3)])
    observations, _ = vector.reset(seed=[0, 2, 4])
    environment = env_adapters.make("frozenlake")
    assert list(observations) == [environment.reset(seed=seed)[0] for seed in (0, 2, 4)]
    vector.step(["down", "right", "nonsense"])
    vector.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "chess"}, "unknown environment 'chess'"),
        ({"name": "sokoban", "speed": 1}, "no option 'speed'"),
        ({"name": "sokoban", "render_mode": "human"}, "unknown render mode 'human'; known: ansi"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_gymnasium(**arguments)


def test_only_this_bridge_needs_gymnasium() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import env_adapters.bridges; print(env_adapters.bridges.__all__)\n"
        "import env_adapters.bridges.as_gymnasium"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "GymnasiumEnvironment" in result.stdout and "ModuleNotFoundError" in result.stderr
