"""MiniHack on the real engine: determinism, limits, hostile text, reward."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import env_adapters
from env_adapters import INFO_KEYS, TextEnvironment
from env_adapters.minihack.variants import VARIANTS

ROOT = Path(__file__).parents[3]
EPISODES = """
import hashlib, random, sys
import env_adapters
for variant in sys.argv[1:]:
    environment = env_adapters.make("minihack", variant=variant)
    digest = hashlib.sha256()
    for seed in range(10):
        observation, info = environment.reset(seed=seed)
        actions = random.Random(seed)
        over = False
        while not over:
            digest.update(observation.encode())
            observation, _, terminated, truncated, info = environment.step(actions.choice(info["admissible_actions"]))
            over = terminated or truncated
        digest.update(observation.encode())
    print(variant, digest.hexdigest())
    environment.close()
"""


@pytest.fixture
def ultimate() -> Iterator[TextEnvironment]:
    environment = env_adapters.make("minihack", variant="room-ultimate")
    yield environment
    environment.close()


def hostile(count: int) -> list[str]:
    chosen = random.Random(0)
    fixed = [
        "",
        " ",
        "\x00",
        "\x1b[2J\x1b",
        "y\n",
        "#quit\ny\n",
        "S",
        "\udcff\ud800",
        "移动 north",
        "\uff4d\uff4f\uff56\uff45 north",
        "move north\u200b",
        "\u202emove north",
        "🐉" * 1000,
        "a" * 1_000_000,
        "<action>" * 125_000,
        "<action></action>",
        "<action>move up</action>",
        "<action>move north, move east</action>",
        "<action><action>move north</action></action></action>",
        '{"action": "move north"}',
        json.dumps({"name": "move", "arguments": {"direction": "north"}}),
        "[" * 100_000,
        "__import__('os')._exit(1)",
        "%s%n{0}{info}",
    ]
    alphabet = [chr(code) for code in (*range(0, 300), 0x2028, 0xD800, 0x1F409, 0x10FFFF)] + ["<action>", "</action>"]
    noise = ["".join(chosen.choices(alphabet, k=chosen.randrange(1, 200))) for _ in range(count - len(fixed))]
    return fixed + noise


def play_out(variant: str) -> list[str]:
    command = [sys.executable, "-c", EPISODES, *variant.split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_two_processes_see_the_same_episodes() -> None:
    names = " ".join(VARIANTS)
    first, second = play_out(names), play_out(names)
    assert first == second
    # Noise does not reach the river, in whose width these two differ.
    assert len({line.split()[1] for line in first}) == len(VARIANTS.keys() - {"river-narrow"})


def test_episodes_in_threads_equal_sequential_ones() -> None:
    def episode(seed: int) -> list[str]:
        environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=20)
        observations = [environment.reset(seed=seed)[0]]
        actions = random.Random(seed)
        observations += [environment.step(actions.choice(environment.admissible_actions))[0] for _ in range(20)]
        environment.close()
        return observations

    alone = [episode(seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(episode, range(12))) == alone


def test_an_instance_keeps_nothing_from_the_episode_before(ultimate: TextEnvironment) -> None:
    fresh, _ = ultimate.reset(seed=5)
    ultimate.reset(seed=6)
    for _ in range(10):
        ultimate.step("move east")
    assert ultimate.reset(seed=5)[0] == fresh


def test_seeds_give_different_rooms(ultimate: TextEnvironment) -> None:
    def map_of(seed: int) -> str:
        return ultimate.reset(seed=seed)[0].partition("Legend")[0]

    assert len({map_of(seed) for seed in range(30)}) >= 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_observations_have_the_promised_form(variant: str) -> None:
    environment = env_adapters.make("minihack", variant=variant)
    chosen = random.Random(1)
    for seed in range(8):
        observation, info = environment.reset(seed=seed)
        for _ in range(30):
            lines = observation.split("\n")
            rows = [line.split(" ") for line in lines[:9]]
            assert all(len(row) == 9 and all(len(symbol) == 1 for symbol in row) for row in rows)
            assert rows[4][4] == "@"
            assert lines[9].startswith("Legend: @ you, ")
            assert lines[10].startswith("Inventory: ") == (len(lines) == 13) == (variant == "keyroom")
            assert lines[-2].startswith("Message: ") and len(lines) in (12, 13)
            assert {symbol for row in rows for symbol in row} <= set(lines[9])
            assert re.fullmatch(r"Hit points: \d+/\d+", lines[-1])
            assert len(observation.split()) < 180
            assert info.keys() == INFO_KEYS
            observation, _, terminated, truncated, info = environment.step(chosen.choice(info["admissible_actions"]))
            if terminated or truncated:
                break
    environment.close()


def test_no_invalid_text_breaks_a_step_or_changes_the_game() -> None:
    environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=301)
    before, _ = environment.reset(seed=11)
    texts = hostile(300)
    assert len(texts) == 300
    for text in texts:
        observation, reward, terminated, truncated, info = environment.step(text)
        valid = info["action_valid"]
        assert valid == ("<action><action>" in text and "move north" in text)
        assert (reward, terminated, truncated) == (0.0, False, False) and info.keys() == INFO_KEYS
        if not valid:
            assert observation.startswith("Invalid action") and "move northwest" in observation
            assert observation.endswith(before) and len(observation) < 2000
        before = before if not valid else observation
    assert environment.step("move south")[3]
    environment.close()


def test_a_message_with_thoughts_plays_its_last_action() -> None:
    environment = env_adapters.make("minihack", variant="room")
    environment.reset(seed=0)
    plain = environment.step("move east")[0]
    environment.reset(seed=0)
    assert environment.step("<think>west?</think><action>move west</action><action>Move East</action>")[0] == plain
    environment.close()


def test_walking_the_diagonal_of_the_fixed_room_wins() -> None:
    environment = env_adapters.make("minihack", variant="room", max_turns=4)
    environment.reset(seed=0)
    *_, info = environment.step("move north")
    assert info["action_valid"] and not info["action_effective"]  # the start is in the north-west corner
    for _ in range(2):
        assert environment.step("move southeast")[1:4] == (0.0, False, False)
    assert environment.step("move southeast")[1:4] == (0.0, False, True)
    environment.reset(seed=0)
    for _ in range(3):
        environment.step("move southeast")
    observation, reward, terminated, truncated, info = environment.step("move southeast")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] is True and info["score"] == 1.0 and info["action_effective"]
    assert "won" in observation
    environment.close()


def test_a_limit_above_the_engines_own_still_truncates() -> None:
    environment = env_adapters.make("minihack", variant="room", max_turns=120)  # the level's own limit is 100
    environment.reset(seed=0)
    ends = [environment.step("move north")[2:4] for _ in range(120)]
    assert ends == [(False, False)] * 119 + [(False, True)]
    environment.close()


def test_the_key_opens_the_door_and_the_message_says_so() -> None:
    environment = env_adapters.make("minihack", variant="keyroom")
    environment.reset(seed=44)  # the agent starts on the key and next to the door
    observation, *_, info = environment.step("apply key")
    assert info["action_valid"] and not info["action_effective"] and "closed door" in observation
    carried = [line for line in observation.splitlines() if line.startswith("Inventory: ")]
    assert len(carried) == 1 and "weapon in hand" in carried[0] and "Master Key" not in carried[0]
    observation = environment.step("pickup")[0]
    (carried,) = (line for line in observation.splitlines() if line.startswith("Inventory: "))
    assert "Master Key" in carried
    observation, *_, info = environment.step("apply key")
    assert info["action_effective"] and "You unlock the door with the key" in observation
    assert "' open door" in observation and "closed door" not in observation
    for action in ("move north", "move north"):
        environment.step(action)
    assert environment.step("move northeast")[1:3] == (1.0, True)
    environment.close()


def test_a_boulder_pushed_into_the_river_can_be_crossed() -> None:
    environment = env_adapters.make("minihack", variant="river")
    environment.reset(seed=96)
    directions = ["northeast"] * 2 + ["southeast"] + ["east"] * 8 + ["north"] * 2
    steps = [environment.step(f"move {direction}") for direction in directions]
    assert any("push the boulder into the water. Now you can cross it!" in step[0] for step in steps)
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 12 + [(1.0, True, False)]
    assert steps[-1][4]["success"]
    environment.close()


def test_dying_ends_the_episode_without_reward() -> None:
    chosen = random.Random(2)
    ends = []
    environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=200)
    for seed in range(60):
        environment.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, info = environment.step(
                chosen.choice(environment.admissible_actions)
            )
        ends.append((observation, reward, info["success"]))
    environment.close()
    assert ("You died. You lost.", 0.0, False) in ends
    assert all(success == (reward == 1.0) for _, reward, success in ends)


def test_wrong_options_are_refused(ultimate: TextEnvironment) -> None:
    with pytest.raises(ValueError, match="'castle'; known: room, "):
        env_adapters.make("minihack", variant="castle")
    with pytest.raises(ValueError, match="no reset option 'level'"):
        ultimate.reset(seed=0, options={"level": 2})


def test_close_can_be_called_twice(ultimate: TextEnvironment) -> None:
    ultimate.close()
    ultimate.close()
