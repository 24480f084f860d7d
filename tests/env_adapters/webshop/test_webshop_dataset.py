"""WebShop's dataset rows: format, disjoint splits, options in a row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import env_adapters
from env_adapters.webshop.dataset import build_rows


def products(rows: list[dict[str, Any]]) -> set[str]:
    return {row["extra_info"]["task_id"].split("/")[1] for row in rows}


def test_a_row_has_the_expected_format(expected_row: Callable[..., dict[str, Any]]) -> None:
    given = {"data": "synthetic", "observation_mode": "text", "reward": "graded", "max_turns": 12}
    row = build_rows("val", 3, seed=1, **given)[2]
    options = {"data": "synthetic", "protocol": "paper", "goals": "synthetic", "observation_mode": "text"}
    options |= {"reward": "graded", "split_by": "product", "max_turns": 12}
    assert row == expected_row("webshop", "webshop-synthetic", options, seed=row["extra_info"]["seed"], index=2)
    assert "[SEP]" in row["prompt"][0]["content"]


def test_as_many_rows_as_goals_by_default_and_no_product_in_both() -> None:
    train, val = (build_rows(split, data="synthetic") for split in ("train", "val"))
    assert (len(train), len(val)) == (12162, 3017)
    assert not products(train) & products(val)
    assert len(products(val[:150])) > 80, "goals are drawn, not listed"


def test_more_rows_than_goals_repeat_them(folder: Path) -> None:
    rows = build_rows("val", 10, data=str(folder))
    assert len(rows) == 10 and len({row["extra_info"]["seed"] for row in rows}) == 10
    assert len(products(rows)) == 1


def test_rows_contain_the_folder_of_the_environment_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    (row,) = build_rows("train", 1)
    assert row["data_source"] == "webshop"
    monkeypatch.delenv("WEBSHOP_DATA")
    environment = env_adapters.make("webshop", **json.loads(row["extra_info"]["environment_options"]))
    _, info = environment.reset(seed=row["extra_info"]["seed"])
    assert info["goal"] == row["prompt"][1]["content"] and "Find me warm" in info["goal"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "'test'; known: train, val"),
        ({"split": "test", "count": None}, "'test'; known: train, val"),
        ({"count": 0}, "count .* got 0"),
        ({"seed": -1}, "seed .* got -1"),
        ({"max_turns": 0}, "max_turns .* got 0"),
        ({"observation_mode": "html"}, "observation_mode 'html'; known: text, text_rich"),
        ({"reward": "dense"}, "reward 'dense'; known: binary, graded"),
        ({"data": "/nowhere"}, "no WebShop data in '/nowhere'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(**{"split": "train", "count": 1, "data": "synthetic", **arguments})
