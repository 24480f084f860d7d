"""MiniHack's dataset rows: format, determinism, disjoint splits."""

from collections.abc import Callable
from typing import Any

import pytest

from env_adapters.minihack.dataset import build_rows
from env_adapters.minihack.variants import VARIANTS


def seeds(rows: list[dict[str, Any]]) -> list[int]:
    return [row["extra_info"]["seed"] for row in rows]


def test_a_row_has_the_expected_format(expected_row: Callable[..., dict[str, Any]]) -> None:
    row = build_rows("room-ultimate", "val", 3, seed=1, max_turns=12)[2]
    options = {"variant": "room-ultimate", "protocol": "paper", "max_turns": 12}
    seed = row["extra_info"]["seed"]
    assert row == expected_row("minihack", "minihack/room-ultimate", options, seed=seed, index=2)


def test_splits_share_no_seed_whatever_the_seed_and_count() -> None:
    train = [seed for base in range(4) for seed in seeds(build_rows("maze", "train", 500, seed=base))]
    val = [seed for base in range(4) for seed in seeds(build_rows("maze", "val", 700, seed=base))]
    assert len(set(train)) == 2000 and len(set(val)) == 2800
    assert not set(train) & set(val)


def test_rows_depend_on_the_seed_alone_and_grow_at_the_end() -> None:
    assert build_rows("room", "train", 5, seed=3) == build_rows("room", "train", 9, seed=3)[:5]
    assert seeds(build_rows("room", "train", 5, seed=3)) != seeds(build_rows("room", "train", 5, seed=4))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_rows_without_layout_in_the_goal(variant: str) -> None:
    (row,) = build_rows(variant, "train", 1)
    goal = row["prompt"][1]["content"]
    assert "staircase down" in goal and not any(character.isdigit() for character in goal)
    assert all(action in row["prompt"][0]["content"] for action in VARIANTS[variant].actions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "castle"}, "'castle'; known: room, room-random, room-ultimate"),
        ({"split": "test"}, "'test'; known: train, val"),
        ({"count": 0}, "count .* got 0"),
        ({"count": 2**20 + 1}, "count .* got 1048577"),
        ({"seed": -1}, "seed .* got -1"),
        ({"seed": 2**40}, "seed .* got 1099511627776"),
        ({"max_turns": 0}, "max_turns .* got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(**{"variant": "room", "split": "train", "count": 1, **arguments})
