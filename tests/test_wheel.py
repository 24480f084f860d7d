"""The distribution: its page on an index, and its wheel in an environment that has nothing else."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make dist`` does, from the source distribution: what that lacks, the wheel lacks, too.

    From a copy: a build writes into its folder, where other processes read what this project registers.
    """
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source") / "clone"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "outputs", "build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.mark.slow
def test_a_wheel_works_beside_the_packages_that_it_asks_for(wheel: Path, tmp_path: Path) -> None:
    """Away from the clone, with everything but this project from its environment."""

    def run(program: str, *arguments: object) -> str:
        command = [str(tmp_path / "venv/bin" / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    # Its own .pth files, one of which leads to the clone, are not read from there.
    (packages / "environment.pth").write_text(sysconfig.get_path("purelib"))
    run("python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert Path(run("python", "-c", "import verl_comprl; print(verl_comprl.__file__)").strip()).is_relative_to(packages)
    unmet = subprocess.run([tmp_path / "venv/bin/python", "-m", "pip", "check"], capture_output=True, text=True).stdout
    assert not [line for line in unmet.splitlines() if line.startswith("verl-comprl ")], unmet
    assert "sokoban" in run("comprl", "env", "list")
    run("comprl", "data", "vaults", "--split", "val", "--count", "4", "--output", "val.parquet")
    shutil.copytree(ROOT / "examples/run", tmp_path / "run")
    run("comprl", "view", "run", "--output", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 50_000
    assert "arm: complementary" in run("comprl", "train", "--info", "defaults-tree")


@pytest.mark.run
@pytest.mark.long
def test_a_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    def run(*command: object) -> str:
        done = subprocess.run([str(word) for word in command], cwd=tmp_path, capture_output=True, text=True, env={})
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty/bin/python"
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
