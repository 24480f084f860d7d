"""Generates ALFWorld games, so that none have to be downloaded.

Owns drawing games, checking that each can be won, and writing them in the layout of ``alfworld-download``, so that the
same code reads both.

Usage: ``python -m env_adapters.alfworld.generator --output DIR --games N --seed S``.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_adapters.alfworld.engine import Engine
from env_adapters.alfworld.expert import ScriptedPolicy
from env_adapters.alfworld.game_file import GAME_FILE, LAYOUT, SPLIT_FOLDERS, put_template
from env_adapters.alfworld.problem import TASK_TYPES, Task, place_things, possible_tasks, write_problem
from env_adapters.alfworld.prompt import build_instructions
from env_adapters.alfworld.scenes import Scene, distributed_file, distributed_module, load_scene

_DEFAULT_COUNT = 6
_TURNS = 40
_DRAWS = 100
_UNKNOWN_TASK = "UNKNOWN GOAL"


def make_default_games(folder: Path) -> None:
    """Fill a folder with the default games, which are used if there are no official ones."""
    make_games(folder, _DEFAULT_COUNT, seed=0)


def make_games(folder: Path, count: int, *, seed: int) -> None:
    """Write games of all types; held-out and training games use different rooms, as in the official data.

    Args:
        folder: Folder in which ``json_2.1.1`` is created.
        count: Games per type and split.
        seed: The same seed gives the same files; a larger count adds to them.

    Raises:
        ValueError: If the count is not positive.
    """
    if count < 1:
        raise ValueError(f"count must be positive, got {count}")
    constants = distributed_module("constants")
    scenes = {"train": constants.TRAIN_SCENE_NUMBERS, "val": constants.TEST_SCENE_NUMBERS}
    engine = Engine()
    for split, numbers in scenes.items():
        for task_type in TASK_TYPES:
            for number in range(count):
                chosen = random.Random(f"{seed} {split} {task_type} {number}")
                trial = f"trial_{seed}_{number:05}"
                _write_game(folder / LAYOUT / SPLIT_FOLDERS[split], trial, task_type, numbers, chosen, engine)
    engine.close()


def _write_game(
    folder: Path, trial: str, task_type: str, scenes: Sequence[int], chosen: random.Random, engine: Engine
) -> None:
    for _ in range(_DRAWS):
        scene = load_scene(chosen.choice(scenes))
        if tasks := possible_tasks(task_type, scene):
            task = chosen.choice(tasks)
            game = _draw_game(trial, task, scene, chosen)
            if walkthrough := _win(game, engine):
                break
    else:
        raise RuntimeError(f"none of {_DRAWS} games of type {task_type} was won by the scripted player")
    name = "-".join([task.type, task.object, "None", task.receptacle or task.lamp, str(scene.number)])
    place = folder / name / trial
    place.mkdir(parents=True)
    (place / GAME_FILE).write_text(json.dumps({**game, "solvable": True, "walkthrough": walkthrough}))
    (place / "traj_data.json").write_text(json.dumps(_trajectory_data(trial, task, scene)))


def _draw_game(trial: str, task: Task, scene: Scene, chosen: random.Random) -> dict[str, Any]:
    template: str = chosen.choice(distributed_module("goal_library").gdict[task.type]["templates"])
    words = {"obj": task.object, "recep": task.receptacle, "toggle": task.lamp}
    sentence = template.format(**{name: word.lower() for name, word in words.items()})
    things = place_things(task, scene, chosen)
    return {
        "pddl_domain": distributed_file("data", "alfred.pddl").read_text(),
        "grammar": distributed_file("data", "alfred.twl2").read_text().replace(_UNKNOWN_TASK, sentence),
        "pddl_problem": write_problem(f"plan_{trial}", task, scene, things, chosen),
    }


def _win(game: dict[str, Any], engine: Engine) -> list[str]:
    """Return the commands with which the scripted player wins, or an empty list if it does not win."""
    policy = ScriptedPolicy(build_instructions(put_template(game), _TURNS))
    view, commands = engine.start(game), []
    while not view.won and len(commands) < _TURNS:
        commands.append(policy.act(view.text))
        view = engine.play(commands[-1])
    return commands if view.won else []


def _trajectory_data(trial: str, task: Task, scene: Scene) -> dict[str, Any]:
    """Return what alfworld's loader and its experts read from ``traj_data.json``."""
    return {
        "task_id": trial,
        "task_type": task.type,
        "pddl_params": {
            "object_target": task.object,
            "object_sliced": False,
            "parent_target": task.receptacle,
            "toggle_target": task.lamp,
            "mrecep_target": "",
        },
        "scene": {"floor_plan": f"FloorPlan{scene.number}", "scene_num": scene.number},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m env_adapters.alfworld.generator", description="Generate ALFWorld games."
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to create; pass it as option data later")
    parser.add_argument(
        "--games", type=int, default=_DEFAULT_COUNT, help="games per type and split (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other games (default 0)")
    options = parser.parse_args(arguments)
    if (options.output / LAYOUT).exists():
        parser.error(f"{options.output / LAYOUT} exists already")
    make_games(options.output, options.games, seed=options.seed)
    print(f"{2 * len(TASK_TYPES) * options.games} games in {options.output}")


if __name__ == "__main__":
    main()
