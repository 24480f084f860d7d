"""The wheel in an environment that has nothing else: what needs no dependency works, and no file is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import verl_comprl

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib.resources, sys
import env_adapters, verl_comprl, verl_comprl.compat, verl_comprl.errors, verl_comprl.names
environment = env_adapters.make("sokoban", difficulty="easy")
observation, info = environment.reset(seed=7)
assert "Legend" in observation and info["goal"]
assert not {"numpy", "torch", "verl", "ray"} & sys.modules.keys()
files = importlib.resources.files("verl_comprl")
for name in (
    "config/arm/complementary.yaml",
    "config/comprl/default.yaml",
    "extractor/prompts/distill.system.txt",
    "viewer/web/index.html",
    "viewer/web/vendor/uplot.js",
):
    assert files.joinpath(name).is_file(), name
print(verl_comprl.__version__)
"""


@pytest.mark.run
@pytest.mark.long
def test_a_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    def run(*command: object) -> str:
        done = subprocess.run([str(word) for word in command], cwd=tmp_path, capture_output=True, text=True, env={})
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty/bin/python"
    (wheel,) = tmp_path.glob("*.whl")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert run(python, "-c", PROGRAM).strip() == verl_comprl.__version__
