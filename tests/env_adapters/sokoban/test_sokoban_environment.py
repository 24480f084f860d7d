"""Sokoban episodes: observations, rewards, invalid input, determinism."""

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import env_adapters
from env_adapters import INFO_KEYS
from env_adapters.sokoban.environment import SokobanEnvironment

ROOT = Path(__file__).parents[3]
EPISODES = """
import hashlib, random
import env_adapters
digest = hashlib.sha256()
for difficulty in ("easy", "medium", "hard"):
    environment = env_adapters.make("sokoban", difficulty=difficulty)
    for seed in range(20):
        observation, info = environment.reset(seed=seed)
        actions, over = random.Random(seed), False
        while not over:
            digest.update(observation.encode())
            observation, _, terminated, truncated, info = environment.step(actions.choice(info["admissible_actions"]))
            over = terminated or truncated
print(digest.hexdigest())
"""

LEGEND = "Legend: @ you, + you on a target, $ box, * box on a target, . target, _ floor, # wall"


def test_observations_of_an_episode() -> None:
    environment = SokobanEnvironment()
    observation, info = environment.reset(seed=0)
    assert observation.split("\n") == [
        "# # # # # #",
        "# # _ _ _ #",
        "# _ _ $ _ #",
        "# _ _ $ @ #",
        "# # . # . #",
        "# # # # # #",
        LEGEND,
        "Message: (none)",
        "Boxes on targets: 0 of 2",
    ]
    assert info["task_id"] == "sokoban/6x6-2-medium/0" and info["score"] == 0.0
    observation, *_, info = environment.step("right")
    assert "Message: You are blocked; nothing moved." in observation
    assert info["action_valid"] and not info["action_effective"]
    observation, *_, info = environment.step("<think>hm</think><action>Left</action>")
    assert observation.split("\n")[3] == "# _ $ @ _ #" and "Message: You pushed a box left." in observation
    assert info["action_effective"]
    observation, *_ = environment.step("right")
    assert observation.split("\n")[3] == "# _ $ _ @ #" and "Message: You moved right." in observation


@pytest.mark.parametrize(
    "options", [{}, {"size": 7, "boxes": 3, "difficulty": "hard"}, {"boxes": 1, "difficulty": "easy"}]
)
def test_the_stored_solution_wins_in_the_last_move(options: dict[str, Any]) -> None:
    environment = env_adapters.make("sokoban", **options)
    assert isinstance(environment, SokobanEnvironment)
    for seed in range(20):
        environment.reset(seed=seed)
        *first, last = environment.solution
        scores = set()
        for action in first:
            _, reward, terminated, truncated, info = environment.step(f"<action>{action}</action>")
            assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
            assert info["action_effective"]
            scores.add(info["score"])
        boxes = options.get("boxes", 2)
        assert scores <= {placed / boxes for placed in range(boxes)}
        observation, reward, terminated, truncated, info = environment.step(last)
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["success"] is True and info["score"] == 1.0 and "You won" in observation
        assert environment.step("up")[1:4] == (0.0, True, False)


def test_the_turn_limit_ends_an_episode_without_reward() -> None:
    environment = SokobanEnvironment(max_turns=3)
    environment.reset(seed=4)
    ends = [environment.step(text)[1:4] for text in ("nonsense", "up", "down")]
    assert ends == [(0.0, False, False)] * 2 + [(0.0, False, True)]
    assert "3 turns" in environment.instructions


def test_no_invalid_text_breaks_a_step_or_changes_the_level() -> None:
    chosen = random.Random(0)
    alphabet = [chr(code) for code in (*range(0, 300), 0x2028, 0xD800, 0xDCFF, 0x1F409)] + [
        "<action>",
        "</action>",
        "up",
    ]
    texts = [
        "",
        "\x00",
        "<action>" * 125_000,
        "a" * 1_000_000,
        "[" * 100_000,
        '{"action": "up"}',
        "up up",
        "u p",
        "\uff55\uff50",
    ]
    texts += ["".join(chosen.choices(alphabet, k=chosen.randrange(1, 100))) for _ in range(200)]
    environment = SokobanEnvironment(max_turns=len(texts) + 1)
    before, _ = environment.reset(seed=11)
    for text in texts:
        observation, reward, terminated, truncated, info = environment.step(text)
        assert info.keys() == INFO_KEYS and (reward, terminated, truncated) == (0.0, False, False)
        assert not info["action_valid"] and observation.endswith(before) and len(observation) < 600
        assert "up, down, left, right" in observation


def test_two_processes_see_the_same_episodes() -> None:
    command = [sys.executable, "-c", EPISODES]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1] and len(runs[0]) == 65


def test_an_instance_keeps_nothing_from_the_episode_before() -> None:
    used, fresh = SokobanEnvironment(), SokobanEnvironment()
    used.reset(seed=6)
    for action in ("up", "left", "down", "right") * 3:
        used.step(action)
    assert used.reset(seed=5) == fresh.reset(seed=5)


def test_memory_does_not_grow() -> None:
    environment = SokobanEnvironment()
    environment.reset(seed=0)
    tracemalloc.start()
    try:
        for seed in range(30):
            environment.reset(seed=seed)
            environment.step("x" * 100_000)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 5}, "unknown size 5; known: 6, 7, 8"),
        ({"size": 6.0}, "unknown size 6.0"),
        ({"boxes": 0}, "unknown boxes 0; known: 1, 2, 3"),
        ({"boxes": True}, "unknown boxes True"),
        ({"difficulty": "brutal"}, "unknown difficulty 'brutal'; known: easy, medium, hard"),
        ({"difficulty": ["easy"]}, "unknown difficulty"),
        ({"max_turns": 0}, "max_turns .* got 0"),
        ({"speed": 1}, "no option 'speed'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env_adapters.make("sokoban", **options)


def test_reset_options_are_refused() -> None:
    with pytest.raises(ValueError, match="no reset option 'level'"):
        SokobanEnvironment().reset(seed=0, options={"level": 1})
