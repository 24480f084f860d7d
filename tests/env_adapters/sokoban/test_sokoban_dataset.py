"""Sokoban's dataset rows."""

import json
from typing import Any

import pytest

import env_adapters
from env_adapters.sokoban.dataset import build_rows


def test_a_row_makes_the_environment_that_it_describes() -> None:
    row = build_rows("val", 3, seed=1, size=7, boxes=3, difficulty="hard", max_turns=40)[2]
    extra = row["extra_info"]
    environment = env_adapters.make(extra["environment"], **json.loads(extra["environment_options"]))
    _, info = environment.reset(seed=extra["seed"])
    assert row["prompt"] == [
        {"role": "system", "content": environment.instructions},
        {"role": "user", "content": environment.goal},
    ]
    assert (extra["task_id"], row["data_source"]) == (info["task_id"], "sokoban/7x7-3-hard")
    assert environment.max_turns == 40 and "40 turns" in environment.instructions
    assert environment.goal == "Push every box onto a target in a small Sokoban room with three boxes."


def test_the_defaults_are_those_of_the_environment() -> None:
    (row,) = env_adapters.dataset_builder("sokoban")(split="train", count=1)
    environment = env_adapters.make("sokoban")
    assert row["prompt"][0]["content"] == environment.instructions
    assert row["data_source"] == "sokoban/6x6-2-medium"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"split": "test"}, "'test'"), ({"count": 0}, "got 0"), ({"boxes": 4}, "4"), ({"max_turns": 0}, "max_turns .* 0")],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(**{"split": "train", "count": 1, **arguments})
