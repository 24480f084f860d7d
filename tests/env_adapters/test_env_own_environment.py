"""The environment of examples/own_environment, used as its README describes."""

import json

import pytest

import env_adapters
from env_adapters.dataset import split_of

PATH = "examples.own_environment.guess:GuessEnvironment"


@pytest.mark.parametrize("split", ["train", "val"])
def test_halving_the_range_wins_every_row_of_the_dataset(split: str) -> None:
    rows = env_adapters.dataset_builder(PATH)(split=split, count=50)
    secrets = set()
    for row in rows:
        extra = row["extra_info"]
        assert extra["environment"] == PATH
        environment = env_adapters.make(extra["environment"], **json.loads(extra["environment_options"]))
        observation, info = environment.reset(seed=extra["seed"])
        assert [message["content"] for message in row["prompt"]] == [environment.instructions, environment.goal]
        assert (info["task_id"], split_of(extra["seed"])[0]) == (extra["task_id"], split)
        low, high, rewards, over, guess = 1, 100, [], False, 0
        while not over:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = environment.step(f"<think>{low}</think><action>{guess}")
            rewards.append(reward)
            over = terminated or truncated
            low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
        assert info["success"] and len(rewards) <= 7 and rewards == [0.0] * (len(rewards) - 1) + [1.0]
        secrets.add(guess)
    assert len(secrets) == 50


def test_no_number_is_both_trained_on_and_held_out() -> None:
    from examples.own_environment.guess import SECRETS

    assert sorted(SECRETS["train"] + SECRETS["val"]) == list(range(1, 101))


def test_anything_but_a_number_in_the_range_is_refused() -> None:
    environment = env_adapters.make(PATH, max_turns=9)
    environment.reset(seed=3)
    for text in ("", "0", "101", "-5", "5.5", "²", "9" * 10_000, "fifty", "\ud800"):
        observation, reward, *_, info = environment.step(text)
        assert not info["action_valid"] and reward == 0.0 and "a number from 1 to 100" in observation
