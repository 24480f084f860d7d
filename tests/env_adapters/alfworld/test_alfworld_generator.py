"""Generated ALFWorld games: reproducible, varied, accepted by ALFWorld's own loader."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from env_adapters.alfworld import generator
from env_adapters.alfworld.engine import Engine
from env_adapters.alfworld.game_file import Game
from env_adapters.alfworld.games import _DEFAULT_GAMES, list_games
from env_adapters.alfworld.problem import TASK_TYPES, place_things, possible_tasks
from env_adapters.alfworld.scenes import distributed_module, load_scene

ROOT = Path(__file__).parents[3]


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(f.relative_to(folder)).encode() + f.read_bytes() for f in files)).hexdigest()


def test_every_type_is_there_once_per_split_and_rooms_are_held_out(data: str) -> None:
    rooms = {}
    for split in ("train", "val"):
        names = [game.task_id.split("/")[2] for game in list_games(data, split)]
        assert sorted(name.split("-")[0] for name in names) == sorted(TASK_TYPES)
        rooms[split] = {name.split("-")[-1] for name in names}
    assert not rooms["train"] & rooms["val"]


def test_the_official_loader_accepts_them(data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {
            "data_path": f"{data}/json_2.1.1/train",
            "eval_ood_data_path": f"{data}/json_2.1.1/valid_unseen",
            "num_train_games": -1,
            "num_eval_games": -1,
        },
    }
    for split, ours in (("train", "train"), ("eval_out_of_distribution", "val")):
        files = AlfredTWEnv(config, train_eval=split).game_files
        assert sorted(files) == sorted(str(game.path) for game in list_games(data, ours))


def test_the_official_expert_can_read_the_trajectory_files(
    games: dict[str, Game], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(games["look_at_obj_in_light"].path.parent))
    from alfworld.agents.expert import HandCodedTWAgent
    from alfworld.agents.utils.misc import get_templated_task_desc

    for task_type, game in games.items():
        HandCodedTWAgent().reset(str(game.path))
        trajectory = json.loads((game.path.parent / "traj_data.json").read_text())
        assert trajectory["task_type"] == task_type
        templates = distributed_module("goal_library").gdict[task_type]["templates"]
        possible = set()
        for seed in range(20):
            random.seed(seed)
            possible.add(get_templated_task_desc(trajectory))
        assert len(possible) == len(templates)
        assert any(f"Your task is to: {sentence}." in game.read()["grammar"] for sentence in possible)


def test_another_process_makes_the_same_files(data: str, tmp_path: Path, cache_folder: Path) -> None:
    arguments = ["--output", str(tmp_path / "games"), "--games", "1", "--seed", "164"]
    command = [sys.executable, "-m", "env_adapters.alfworld.generator", *arguments]
    environ = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"12 games in {tmp_path / 'games'}\n"
    assert digest(tmp_path / "games") == digest(Path(data))


def test_the_generated_games_match_the_version_of_the_default_folder(data: str) -> None:
    """If this fails, increase the number in ``_DEFAULT_GAMES``, or users keep old games, and pin the new digest."""
    assert (_DEFAULT_GAMES, digest(Path(data))[:12]) == ("alfworld-games-1", "e10489213490")


def test_an_existing_folder_is_left_alone(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = digest(Path(data))
    with pytest.raises(SystemExit):
        generator.main(["--output", data, "--games", "1"])
    assert "exists already" in capsys.readouterr().err and digest(Path(data)) == before


@pytest.mark.parametrize("count", [0, -2])
def test_a_count_that_is_not_positive_is_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"count must be positive, got {count}"):
        generator.make_games(tmp_path, count, seed=0)


def test_a_game_that_is_not_won_is_drawn_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[dict[str, Any]] = []

    def win(game: dict[str, Any], engine: Engine) -> list[str]:
        drawn.append(game)
        return ["look"] if len(drawn) % 3 == 0 else []

    monkeypatch.setattr(generator, "_win", win)
    generator.make_games(tmp_path, 1, seed=5)
    written = [json.loads(path.read_text()) for path in tmp_path.rglob("*.tw-pddl")]
    assert len(drawn) == 36 and len({game["pddl_problem"] for game in drawn}) == 36
    assert sorted(game["pddl_problem"] for game in written) == sorted(game["pddl_problem"] for game in drawn[2::3])


def test_it_gives_up_if_no_game_is_won(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generator, "_win", lambda game, engine: [])
    with pytest.raises(RuntimeError, match="none of 100 games of type pick_and_place_simple was won"):
        generator.make_games(tmp_path, 1, seed=0)


def test_objects_are_placed_where_allowed_and_no_task_is_partly_done() -> None:
    constants = distributed_module("constants")
    tools = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
    chosen = random.Random(0)
    for task_type in TASK_TYPES:
        for number in (1, 12, 205, 220, 301, 314, 402, 420):
            scene = load_scene(number)
            tasks = possible_tasks(task_type, scene)
            for task in chosen.sample(tasks, min(3, len(tasks))):
                things = place_things(task, scene, chosen)
                targets = [thing for thing in things if thing.type == task.object]
                assert len(targets) >= (2 if "two" in task_type else 1)
                closed = {task.receptacle, tools.get(task_type.split("_")[1])}
                assert not any(thing.receptacle.type in closed for thing in targets)
                assert bool(task.lamp) == (task_type == "look_at_obj_in_light")
                assert not task.lamp or task.lamp in {thing.type for thing in things}
                for thing in things:
                    allowed = constants.VAL_RECEPTACLE_OBJECTS[thing.receptacle.type]
                    assert thing.type in allowed or thing.type == "DeskLamp"


def test_receptacles_have_distinct_locations_and_kitchens_allow_heating_and_cooling() -> None:
    constants = distributed_module("constants")
    for number in constants.SCENE_NUMBERS:
        scene = load_scene(number)
        places = [receptacle.location for receptacle in scene.receptacles]
        assert len(set(places)) == len(places) == len({receptacle.id for receptacle in scene.receptacles})
        assert scene.free_locations and not set(scene.free_locations) & set(places)
        kitchen = number in constants.SCENE_TYPE["Kitchen"]
        for task_type in ("pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep"):
            assert bool(possible_tasks(task_type, scene)) == kitchen
