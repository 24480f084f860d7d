"""ALFWorld episodes on the real engine: winning each type, reward, limits, hostile text, determinism."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import env_adapters
from env_adapters import INFO_KEYS, TextEnvironment
from env_adapters.alfworld.expert import ScriptedPolicy
from env_adapters.alfworld.game_file import Game
from env_adapters.alfworld.games import list_games
from env_adapters.alfworld.problem import TASK_TYPES

ROOT = Path(__file__).parents[3]
EPISODES = """
import hashlib, random, sys
import env_adapters
environment = env_adapters.make("alfworld", data=sys.argv[1])
digest = hashlib.sha256()
for seed in (0, 1):
    observation, info = environment.reset(seed=seed)
    actions = random.Random(seed)
    for _ in range(25):
        digest.update(repr((observation, info)).encode())
        observation, *_, info = environment.step(actions.choice(info["admissible_actions"]))
print(digest.hexdigest())
"""


@pytest.fixture
def environment(data: str) -> Iterator[TextEnvironment]:
    environment = env_adapters.make("alfworld", data=data)
    yield environment
    environment.close()


def seed_of(data: str, task_type: str, split: str = "train") -> int:
    names = [game.task_id for game in list_games(data, split)]
    return 2 * next(i for i, name in enumerate(names) if task_type in name) + (split == "val")


def write_game(folder: Path, content: dict[str, Any], task_type: str) -> str:
    place = folder / "json_2.1.1" / "train" / f"{task_type}-Mug-None-Desk-1" / "trial_1"
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps(content))
    return str(folder)


def play(environment: TextEnvironment, seed: int) -> list[tuple[str, str, float, bool, bool, dict[str, Any]]]:
    observation, _ = environment.reset(seed=seed)
    policy, steps = ScriptedPolicy(environment.instructions), []
    while not steps or not (steps[-1][3] or steps[-1][4]):
        action = policy.act(observation)
        steps.append((action, *environment.step(f"<think>hm</think><action>{action}</action>")))
        observation = steps[-1][1]
    return steps


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_scripted_player_wins_every_type(
    environment: TextEnvironment, data: str, task_type: str, split: str
) -> None:
    steps = play(environment, seed_of(data, task_type, split))
    assert [step[2:5] for step in steps[:-1]] == [(0.0, False, False)] * (len(steps) - 1)
    assert not any(step[5]["success"] for step in steps[:-1])
    assert all(step[5]["action_valid"] and step[5]["action_effective"] for step in steps)
    action, _, reward, terminated, truncated, info = steps[-1]
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
    done = {"clean": "clean ", "heat": "heat ", "cool": "cool "}.get(task_type.split("_")[1], "")
    assert any(step[0].startswith(done) for step in steps)
    assert action.startswith("use desklamp" if "light" in task_type else "move ")


def test_the_scripted_player_wins_in_the_older_dialect(
    games: dict[str, Game], older: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    folder = write_game(tmp_path, older(games["pick_clean_then_place_in_recep"].read()), "pick_clean")
    environment = env_adapters.make("alfworld", data=folder)
    steps = play(environment, 0)
    assert "\nput {object} in/on {receptacle}\n" in environment.instructions
    assert "move" not in environment.instructions
    assert steps[-1][5]["success"] and steps[-1][0].startswith("put ") and " in/on " in steps[-1][0]
    assert not any("You arrive at" in step[1] for step in steps), "location names should be left out"
    environment.reset(seed=0)
    for action, *_ in steps[:-1]:
        environment.step(action)
    assert environment.step(steps[-1][0].replace("in/on", "IN"))[2]
    environment.close()


def test_the_first_observation_is_the_room_and_the_task(environment: TextEnvironment, data: str) -> None:
    seed = seed_of(data, "look_at_obj_in_light")
    observation, info = environment.reset(seed=seed)
    room, task = observation.split("\n\n")
    assert room.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert task == f"Your task is to: {environment.goal}" and environment.goal == info["goal"]
    assert "desklamp" in info["goal"] and not any(character.isdigit() for character in info["goal"])
    assert info.keys() == INFO_KEYS and info["task_id"].startswith("alfworld/train/look_at_obj_in_light-")
    assert "\nmove {object} to {receptacle}\n" in environment.instructions and "40 turns" in environment.instructions
    forms = [line.split()[0] for line in environment.instructions.split("cabinet 3:\n")[1].split("\n\n")[0].split("\n")]
    assert "you stand at it already" in environment.instructions  # the game lists no way to where one stands
    assert forms == ["go", "take", "move", "open", "use", "clean", "heat", "cool", "inventory"]


@pytest.mark.parametrize(("reward", "last"), [("signed", -1.0), ("binary", 0.0)])
def test_an_episode_without_success_is_penalised_once(data: str, reward: str, last: float) -> None:
    environment = env_adapters.make("alfworld", data=data, reward=reward, max_turns=3)
    for actions in (("look", "look", "look"), ("look", "look", "dance")):
        environment.reset(seed=0)
        steps = [environment.step(action) for action in actions]
        assert [step[1:4] for step in steps] == [(0.0, False, False)] * 2 + [(last, False, True)]
        assert "Next to it" in steps[-1][0] or "middle of a room" in steps[-1][0]
        assert not steps[-1][4]["success"] and steps[-1][4]["score"] == 0.0
        assert environment.step("look")[1] == 0.0
    environment.reset(seed=0)
    assert environment.truncate()[1:4] == (last, False, True)
    environment.close()


def test_winning_on_the_last_turn_is_not_failure(data: str) -> None:
    seed = seed_of(data, "look_at_obj_in_light")
    environment = env_adapters.make("alfworld", data=data)
    turns = len(play(environment, seed))
    environment.close()
    environment = env_adapters.make("alfworld", data=data, max_turns=turns)
    assert play(environment, seed)[-1][2:5] == (1.0, True, False)
    environment.close()


def hostile() -> list[str]:
    chosen = random.Random(0)
    fixed = [
        "",
        "\x00",
        "\udcff\ud800",
        "look\x00",
        "lo\u200bok",
        "移动",
        "a" * 1_000_000,
        "in on " * 200_000,
        "<action>" * 125_000,
        "<action></action>",
        "<action>take the mug</action>",
        "<action>go to {r}</action>",
        "<action>go to #intro#</action>",
        "<tool_call>{}</tool_call>",
        '{"action": "look"}',
        "[" * 100_000,
        "__import__('os')._exit(1)",
        "%s%n{0}{info}",
    ]
    alphabet = [chr(code) for code in (*range(0, 300), 0x2028, 0xD800, 0x1F409, 0x10FFFF)] + [
        "<action>",
        " in ",
        "put ",
    ]
    return fixed + ["".join(chosen.choices(alphabet, k=chosen.randrange(1, 200))) for _ in range(100)]


def test_no_invalid_text_breaks_a_step_or_changes_the_game(data: str) -> None:
    environment = env_adapters.make("alfworld", data=data, max_turns=1000)
    before, info = environment.reset(seed=0)
    allowed = info["admissible_actions"]
    for text in hostile():
        observation, reward, terminated, truncated, info = environment.step(text)
        assert not info["action_valid"] and info["admissible_actions"] == allowed and info.keys() == INFO_KEYS
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert observation.startswith("Invalid action") and observation.endswith(before)
    place = next(action for action in allowed if action.startswith("go to "))
    moved, *_, info = environment.step(f"<action>{place.upper().replace(' ', '  ')}</action>")
    assert info["action_valid"] and info["action_effective"] and "Invalid" not in moved
    assert not environment.step("inventory")[4]["action_effective"]
    environment.close()


def test_two_processes_see_the_same_episodes(data: str, tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "1"):  # the second has no cached translation
        environ = os.environ | {"PYTHONHASHSEED": seed} | ({"COMPRL_DATA": str(tmp_path)} if seed == "1" else {})
        command = [sys.executable, "-c", EPISODES, data]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_an_instance_keeps_nothing_from_the_episode_before(environment: TextEnvironment) -> None:
    fresh = environment.reset(seed=4)
    environment.reset(seed=2)
    for _ in range(5):
        environment.step(environment.admissible_actions[0])
    assert environment.reset(seed=4) == fresh


def test_seeds_cycle_through_the_games_of_their_split(environment: TextEnvironment) -> None:
    def names(parity: int) -> list[str]:
        return [environment.reset(seed=2 * number + parity)[1]["task_id"] for number in range(7)]

    train, val = names(0), names(1)
    assert len(set(train)) == len(set(val)) == 6 and train[0] == train[6] and val[0] == val[6]
    assert all("/train/" in name for name in train) and all("/valid_unseen/" in name for name in val)


def test_wrong_options_are_refused(environment: TextEnvironment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown reward 'dense'; known: signed, binary"):
        env_adapters.make("alfworld", reward="dense")
    with pytest.raises(ValueError, match="data must be 'generated' or a folder"):
        env_adapters.make("alfworld", data=str(tmp_path))
    with pytest.raises(ValueError, match="no reset option 'game'"):
        environment.reset(seed=0, options={"game": 2})


def test_close_can_be_called_twice(environment: TextEnvironment) -> None:
    environment.close()
    environment.close()


def test_it_is_fast_enough(environment: TextEnvironment, data: str) -> None:
    def seconds(seed: int) -> float:
        chosen = random.Random(seed)
        environment.reset(seed=seed_of(data, "pick_heat"))
        start = time.process_time()
        for _ in range(200):
            environment.step(chosen.choice(environment.admissible_actions))
        return time.process_time() - start

    environment.max_turns = 1000
    assert min(map(seconds, range(3))) < 1.0, "200 steps a second"


def test_without_official_games_the_default_ones_are_generated(
    data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPRL_DATA", str(tmp_path))
    monkeypatch.setattr("env_adapters.alfworld.generator._DEFAULT_COUNT", 1)
    monkeypatch.setattr("env_adapters.alfworld.generator._win", lambda game, engine: ["look"])
    environment = env_adapters.make("alfworld")
    assert "Your task is to: " in environment.reset(seed=1)[0]
    assert len(list(tmp_path.glob("alfworld-games-1/json_2.1.1/*/*/*/game.tw-pddl"))) == 12
    environment.close()
