"""Environments without the base class: any class with reset(seed=…) and step(text)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pyarrow.parquet as pq
import pytest

import env_adapters
from env_adapters import INFO_KEYS
from env_adapters.bridges import GymnasiumEnvironment, bridged_rows
from env_adapters.host import EnvironmentHost
from verl_comprl.cli.main import main

PATH = f"{__name__}:Fruit"


class Fruit:
    """Guess the fruit that a letter stands for; nothing here knows of env_adapters."""

    instructions = "Name a fruit."

    def __init__(self, language: str = "en") -> None:
        self.language = language
        self.closed = False

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        self.letter = "ab"[seed // 2 % 2]
        return f"letter {self.letter}", {"goal": f"Name a fruit with {self.letter}.", "task_id": f"fruit/{self.letter}"}

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if "fail" in text:
            raise RuntimeError("the fruit is rotten")
        won = f"{self.letter}-fruit" in text
        return "yes" if won else "no", float(won), won, False, {"action_valid": "<action>" in text}

    def close(self) -> None:
        self.closed = True


def test_an_episode_goes_through_the_registry() -> None:
    environment = env_adapters.make(PATH, language="de", max_turns=3)
    observation, info = environment.reset(seed=2)
    assert (observation, info["goal"], info["task_id"]) == ("letter b", "Name a fruit with b.", "fruit/b")
    assert info.keys() == INFO_KEYS and environment.instructions == "Name a fruit."
    observation, reward, terminated, truncated, info = environment.step("pear")
    assert (observation, reward, terminated, truncated) == ("no", 0.0, False, False)
    assert (info["action_valid"], info["success"]) == (False, False)
    *_, info = environment.step("<action>c-fruit</action>")
    assert info["action_valid"]
    _, reward, terminated, truncated, info = environment.step("<action>b-fruit</action>")
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
    environment.reset(seed=0)
    assert [environment.step("no")[3] for _ in range(3)] == [False, False, True], "the turn limit is ours"
    environment.close()
    assert environment._object.closed  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has no option 'languag'; did you mean language"):
        env_adapters.make(PATH, languag="de")


def test_its_rows_have_the_goal_and_the_task_of_each_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "fruit.parquet"
    arguments = ["data", PATH, "--split", "train", "--count", "4", "-o", "language=de", "--output", str(output)]
    assert main([*arguments, "--max-turns", "5"]) == 0
    rows = pq.read_table(output).to_pylist()
    assert [row["extra_info"]["task_id"] for row in rows] == ["fruit/a", "fruit/b"] * 2
    for row in rows:
        options = json.loads(row["extra_info"]["environment_options"])
        assert options == {"language": "de", "max_turns": 5} and row["extra_info"]["environment"] == PATH
        environment = env_adapters.make(row["extra_info"]["environment"], **options)
        goal = environment.reset(seed=row["extra_info"]["seed"])[1]["goal"]
        assert [message["content"] for message in row["prompt"]] == ["Name a fruit.", goal]


@pytest.mark.parametrize(("path", "message"), [("pathlib:Path", "reset() and step()"), (f"{__name__}:Mute", "no goal")])
def test_what_cannot_be_used_is_one_line(path: str, message: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["data", path, "--split", "val", "--count", "1", "--output", str(tmp_path / "x.parquet")]) != 0
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


class Mute(Fruit):
    """Says nothing about its task."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        return "letter", {}


async def test_it_runs_in_the_host() -> None:
    host = EnvironmentHost(isolation="thread")
    async with host.session(PATH, {}) as session:
        assert (await session.reset(0))[1]["task_id"] == "fruit/a"
        assert (await session.step("<action>a-fruit</action>"))[1:4] == (1.0, True, False)
    await host.close()


class Gym(gymnasium.Env[Any, Any]):
    """A gymnasium environment that names its tasks."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return "start", {"goal": f"Find {(seed or 0) % 3}.", "task_id": f"find/{(seed or 0) % 3}"} if self.names else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return "end", 1.0, True, False, {}

    names = True


class Bridged(GymnasiumEnvironment):
    """The same, bridged."""

    def __init__(self, *, names: bool = True, max_turns: int = 3) -> None:
        env = Gym()
        env.names = names
        words: dict[str, Any] = {"name": "find", "goal": "Find it.", "rules": "Find."}
        super().__init__(env, **words, actions={"go": 0}, max_turns=max_turns)


@pytest.mark.parametrize("names", [True, False])
def test_the_bridge_keeps_goals_and_names_of_tasks(names: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    reset: Callable[..., Any] = Gym.reset
    monkeypatch.setattr(Gym, "reset", lambda self, *, seed, options: (resets.append(seed), reset(self, seed=seed))[1])
    rows = bridged_rows(Bridged, "train", 4, names=names)
    assert len(resets) == (4 if names else 1), "rows without goals of their own need no reset each"
    for row in rows:
        seed = row["extra_info"]["seed"]
        _, info = Bridged(names=names).reset(seed=seed)
        expected = (f"Find {seed % 3}.", f"find/{seed % 3}") if names else ("Find it.", f"find/{seed}")
        assert (info["goal"], info["task_id"]) == expected
        assert (row["prompt"][-1]["content"], row["extra_info"]["task_id"]) == expected
