"""Finding ALFWorld games in folders with the official layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_adapters.alfworld.game_file import Game, put_template, task_of
from env_adapters.alfworld.games import GENERATED, list_games, resolve_data


def write(folder: Path, name: str, *, split: str = "train", solvable: bool = True, grammar: str = "") -> None:
    place = folder / "json_2.1.1" / split / name
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps({"grammar": grammar, "solvable": solvable}))


def test_the_games_of_a_folder_are_the_solvable_ones_of_the_six_types(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path, f"pick_and_place_simple-Mug-None-Desk-{number}/trial_1")
    write(tmp_path, "pick_and_place_simple-Mug-None-Desk-1/trial_2", solvable=False)
    write(tmp_path, "pick_and_place_simple-AppleSliced-None-Desk-1/trial_1")
    write(tmp_path, "pick_and_place_with_movable_recep-Pen-Mug-Desk-1/trial_1")
    (tmp_path / "json_2.1.1/train/look_at_obj_in_light-Pen-None-DeskLamp-1/trial_without_game").mkdir(parents=True)
    games = list_games(resolve_data(str(tmp_path)), "train")
    names = [f"alfworld/train/pick_and_place_simple-Mug-None-Desk-{number}/trial_1" for number in range(12)]
    assert sorted(game.task_id for game in games) == sorted(names)
    assert [game.task_id for game in games] != sorted(names), "neighbours in the list should be of different types"
    assert all(game.path.parent.name == "trial_1" and game.read()["solvable"] for game in games)
    with pytest.raises(ValueError, match=r"no solvable game in .*valid_unseen"):
        list_games(str(tmp_path), "val")


def test_the_order_depends_on_the_names_alone(tmp_path: Path) -> None:
    names = [f"pick_and_place_simple-Mug-None-Desk-{number}/trial_1" for number in range(20)]
    for folder, order in (("a", names), ("b", reversed(names))):
        for name in order:
            write(tmp_path / folder, name, split="valid_unseen")
    first, second = ([game.task_id for game in list_games(str(tmp_path / folder), "val")] for folder in "ab")
    assert first == second and first[0].startswith("alfworld/valid_unseen/")


def test_the_data_folder_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "official", "pick_and_place_simple-Mug-None-Desk-1/trial_1")
    official = str(tmp_path / "official")
    assert resolve_data(official) == official and resolve_data(GENERATED) == resolve_data(None) == GENERATED
    monkeypatch.setenv("ALFWORLD_DATA", official)
    assert resolve_data(None) == official and resolve_data(GENERATED) == GENERATED
    monkeypatch.setenv("ALFWORLD_DATA", GENERATED)
    assert resolve_data(None) == GENERATED
    # A wrong folder never means other games under the benchmark's name.
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"ALFWORLD_DATA must be 'generated' or a folder with .*, got '/"):
        resolve_data(None)
    # Importing alfworld sets the variable to the downloader's default folder, which it creates.
    default = tmp_path / "home/.cache/alfworld"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALFWORLD_DATA", str(default))
    assert resolve_data(None) == GENERATED
    write(default, "pick_and_place_simple-Mug-None-Desk-1/trial_1")
    assert resolve_data(None) == str(default)
    monkeypatch.delenv("ALFWORLD_DATA")
    assert resolve_data(None) == str(default)
    monkeypatch.setenv("ALFWORLD_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "official")
    monkeypatch.delenv("ALFWORLD_DATA")
    assert resolve_data(None) == GENERATED and resolve_data(".") == official


@pytest.mark.parametrize("data", ["", "nowhere", "/"])
def test_a_folder_without_games_is_refused(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"data must be 'generated' or a folder with json_2.1.1/train, got '{data}'"):
        resolve_data(data)


def test_task_and_template_are_read_from_the_grammar(
    games: dict[str, Game], older: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    content = games["pick_two_obj_and_place"].read()
    assert task_of(content).split()[:2] in (["put", "two"], ["find", "two"]) and task_of(content).endswith(".")
    assert put_template(content) == "move {o} to {r}"
    assert put_template(older(content)) == "put {o} in/on {r}"
    with pytest.raises(ValueError, match="no task"):
        task_of({"grammar": ""})
    with pytest.raises(ValueError, match="no template for PutObject"):
        put_template({"grammar": ""})
