"""FrozenLake: maps, moves, slipping, splits, limits."""

import json
import random
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import env_adapters
from env_adapters import INFO_KEYS
from env_adapters.frozenlake.dataset import build_rows
from env_adapters.frozenlake.environment import FrozenLakeEnvironment, draw_map, side

ROOT = Path(__file__).parents[3]
STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
EPISODES = """
import hashlib, random
import env_adapters
digest = hashlib.sha256()
environment = env_adapters.make("frozenlake", size=6, is_slippery=True)
for seed in range(40):
    observation, info = environment.reset(seed=seed)
    actions, over = random.Random(seed), False
    while not over:
        digest.update(observation.encode())
        observation, _, terminated, truncated, info = environment.step(actions.choice(info["admissible_actions"]))
        over = terminated or truncated
print(digest.hexdigest())
"""


def walk(observation: str) -> list[str]:
    """Return a shortest path around the holes, from the text alone."""
    grid = [line.split(" ") for line in observation.split("\n")[:-1]]
    queue: deque[tuple[tuple[int, int], list[str]]] = deque([((0, 0), [])])
    seen = {(0, 0)}
    while queue:
        (y, x), way = queue.popleft()
        if grid[y][x] == "G":
            return way
        for action, (dy, dx) in STEPS.items():
            cell = (y + dy, x + dx)
            if cell not in seen and min(cell) >= 0 and max(cell) < len(grid) and grid[cell[0]][cell[1]] != "O":
                seen.add(cell)
                queue.append((cell, [*way, action]))
    raise AssertionError(f"no way:\n{observation}")


@pytest.mark.parametrize("size", [4, 8])
def test_every_map_can_be_solved(size: int) -> None:
    environment = FrozenLakeEnvironment(size=size)
    for seed in range(60):
        observation, info = environment.reset(seed=seed)
        lines = observation.split("\n")
        assert len(lines) == size + 1 and all(len(line.split(" ")) == size for line in lines[:size])
        assert observation.startswith("@ ") and lines[size - 1].endswith(" G")
        assert lines[size] == "Legend: @ you, G goal, O hole, _ ice"
        *first, last = walk(observation)
        for action in first:
            _, reward, terminated, truncated, info = environment.step(f"<action>{action}</action>")
            assert (reward, terminated, truncated) == (0.0, False, False) and info["action_effective"]
        observation, reward, terminated, truncated, info = environment.step(last)
        assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
        assert "You won" in observation


def test_falling_into_a_hole_and_walking_into_the_edge() -> None:
    environment = FrozenLakeEnvironment()
    seed = next(seed for seed in range(0, 1000, 2) if draw_map(seed, 4)[0][1] == "H")
    before, _ = environment.reset(seed=seed)
    observation, *_, info = environment.step("up")
    assert observation == before and info["action_valid"] and not info["action_effective"]
    observation, reward, terminated, truncated, info = environment.step("right")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False) and "You lost" in observation


def test_moves_have_the_same_results_as_in_gymnasium() -> None:
    """Gymnasium's own environment on the same map, made through its registry, visits the same cells."""
    for seed in range(10):
        for slippery in (False, True):
            ours = FrozenLakeEnvironment(size=5, is_slippery=slippery, max_turns=100)
            observation, _ = ours.reset(seed=seed)
            theirs = gymnasium.make("FrozenLake-v1", desc=draw_map(seed, 5), is_slippery=slippery)
            cell, _ = theirs.reset(seed=seed)
            actions = random.Random(seed)
            for _ in range(100):
                symbols = observation.replace("\n", " ").split(" ")
                assert symbols.index("@") == cell
                number = actions.randrange(4)
                observation, reward, over, _, _ = ours.step(list(STEPS)[number])
                cell, expected, expected_over, _, _ = theirs.step(number)
                assert (reward, over) == (expected, expected_over)
                if over:
                    break


def test_slipping_is_in_the_prompt_only_where_it_happens() -> None:
    slippery, firm = FrozenLakeEnvironment(is_slippery=True), FrozenLakeEnvironment()
    assert "one of three" in slippery.instructions and "slippery" in slippery.goal
    assert "slippery" not in firm.instructions + firm.goal
    assert slippery.reset(seed=2)[1]["task_id"] == "frozenlake/4x4-slippery/2"


def test_no_map_is_in_both_splits() -> None:
    maps = ["\n".join(draw_map(seed, 4)) for seed in range(1200)]

    def mirrored(lake: str) -> str:
        return "\n".join(map("".join, zip(*lake.split("\n"), strict=True)))

    training = {look for lake in maps[::2] for look in (lake, mirrored(lake))}
    assert not training & set(maps[1::2])
    assert len(set(maps[::2])) < 500  # small lakes do repeat
    sides = [side(lake.split("\n")) for lake in set(maps)]
    assert 0.35 < sum(sides) / len(sides) < 0.65


def test_two_processes_see_the_same_episodes() -> None:
    command = [sys.executable, "-c", EPISODES]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1] and len(runs[0]) == 65


def test_no_text_breaks_a_step() -> None:
    texts = ["", "\x00", "\ud800", "<action>" * 50_000, "a" * 1_000_000, '{"action": "up"}', "0", "upp", "\U0001f409"]
    environment = FrozenLakeEnvironment(max_turns=len(texts))
    before, _ = environment.reset(seed=1)
    for index, text in enumerate(texts):
        observation, reward, terminated, truncated, info = environment.step(text)
        assert (reward, terminated, truncated) == (0.0, False, index == len(texts) - 1)
        assert not info["action_valid"] and observation.endswith(before) and info.keys() == INFO_KEYS


def test_a_row_makes_the_environment_that_it_describes() -> None:
    row = build_rows("train", 2, size=5, is_slippery=True, max_turns=9)[1]
    extra = row["extra_info"]
    environment = env_adapters.make(extra["environment"], **json.loads(extra["environment_options"]))
    _, info = environment.reset(seed=extra["seed"])
    assert [message["content"] for message in row["prompt"]] == [environment.instructions, environment.goal]
    assert extra["task_id"] == info["task_id"] and row["data_source"] == "frozenlake/5x5-slippery"
    assert env_adapters.dataset_builder("frozenlake") is build_rows


def test_rows_need_no_engine() -> None:
    code = "import sys; sys.modules['gymnasium'] = None; from env_adapters.frozenlake.dataset import build_rows as b; "
    code += "print(len(b('val', 3)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "3\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, r"size must be an integer in \[4, 8\], got 3"),
        ({"size": "4"}, "got '4'"),
        ({"is_slippery": "yes"}, "is_slippery must be true or false, got 'yes'"),
        ({"max_turns": 0}, "max_turns .* got 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env_adapters.make("frozenlake", **options)
    with pytest.raises(ValueError, match="no reset option 'desc'"):
        FrozenLakeEnvironment().reset(seed=0, options={"desc": []})
