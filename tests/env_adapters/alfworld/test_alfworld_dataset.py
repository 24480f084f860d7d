"""ALFWorld's dataset rows: format, disjoint splits, limits, independence of the engine."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_adapters.alfworld.dataset import build_rows
from env_adapters.alfworld.game_file import Game
from env_adapters.alfworld.games import list_games

ROOT = Path(__file__).parents[3]


def test_a_row_has_the_expected_format(data: str, expected_row: Callable[..., dict[str, Any]]) -> None:
    row = build_rows("val", 3, data=data, seed=1, max_turns=12)[2]
    options = {"data": data, "protocol": "paper", "reward": "signed", "held_out": "valid_unseen", "max_turns": 12}
    assert row == expected_row("alfworld", "alfworld", options, seed=row["extra_info"]["seed"], index=2)


def test_generated_games_have_a_name_of_their_own(
    data: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("env_adapters.alfworld.games._generated", lambda: Path(data))
    names = [build_rows("train", 1, data=name)[0]["data_source"] for name in ("generated", data)]
    assert names == ["alfworld-generated", "alfworld"]


def tasks(rows: list[dict[str, Any]]) -> list[str]:
    return [row["extra_info"]["task_id"] for row in rows]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("seed", [0, 1, 5, 2**39])
def test_every_game_of_a_split_occurs_once(data: str, split: str, seed: int) -> None:
    rows = build_rows(split, data=data, seed=seed)
    assert sorted(tasks(rows)) == sorted(game.task_id for game in list_games(data, split))
    assert tasks(build_rows(split, 4, data=data, seed=seed)) == tasks(rows)[:4]
    assert tasks(build_rows(split, 10, data=data, seed=seed)) == (tasks(rows) * 2)[:10]
    assert {row["extra_info"]["seed"] % 2 for row in rows} == {split == "val"}


def test_rows_contain_the_folder_of_their_games(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", data)
    (row,) = build_rows("train", 1, reward="binary")
    options = {"protocol": "paper", "reward": "binary", "held_out": "valid_unseen", "max_turns": 40}
    assert json.loads(row["extra_info"]["environment_options"]) == {"data": data, **options}


def test_games_of_two_dialects_cannot_share_a_prompt(
    games: dict[str, Game], older: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    content = games["pick_and_place_simple"].read()
    for name, game in (("a", content), ("b", older(content))):
        place = tmp_path / "json_2.1.1/train" / name / "trial"
        place.mkdir(parents=True)
        (place / "game.tw-pddl").write_text(json.dumps(game))
    with pytest.raises(ValueError, match=r"several dialects: move \{o\} to \{r\}, put \{o\} in/on \{r\}"):
        build_rows("train", data=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "'test'; known: train, val"),
        ({"count": 0}, "count .* got 0"),
        ({"count": 2**20 + 1}, "count .* got 1048577"),
        ({"seed": -1}, "seed .* got -1"),
        ({"reward": "dense"}, "unknown reward 'dense'; known: signed, binary"),
        ({"max_turns": 0}, "max_turns .* got 0"),
        ({"data": "/nowhere"}, "data must be .* got '/nowhere'"),
    ],
)
def test_arguments_out_of_range_are_refused(data: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(**{"split": "train", "count": 1, "data": data, **arguments})


def test_rows_need_no_engine(data: str) -> None:
    code = (
        "import sys\n"
        "from env_adapters.alfworld.dataset import build_rows\n"
        "rows = build_rows('train', data=sys.argv[1])\n"
        "print(len(rows), *sorted({'alfworld', 'textworld', 'fast_downward', 'numpy'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, data]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "6\n"
