"""The distribution: its page on an index, and its wheel in an environment that has nothing else."""

import os
import re
import shutil
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


def test_the_links_of_the_page_on_an_index_lead_into_the_repository(tmp_path: Path) -> None:
    for name in ("setup.py", "README.md", "verl_comprl/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"REPOSITORY_URL": "https://host/us/it/"}, check=True)
    page = (tmp_path / "verl_comprl.egg-info/PKG-INFO").read_text()
    assert "Project-URL: Source, https://host/us/it\n" in page
    links = re.findall(r"\]\(([^)]+)\)", page)
    inside = [link for link in links if re.match("https://host/us/it/(blob|raw)/HEAD/", link)]
    assert len(inside) > 20 and all(link.startswith("https://") for link in links)
    assert all((ROOT / link.split("/HEAD/")[1].partition("#")[0]).exists() for link in inside)
