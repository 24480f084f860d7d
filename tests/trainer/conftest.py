"""Models and data of the quickstart, made once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT


@pytest.fixture(scope="session")
def models() -> Path:
    """The two models, warm-started; from the quickstart's cache where there is one."""
    models = Path(os.environ.get("COMPRL_QUICKSTART", ROOT / "outputs" / "quickstart")) / "models"
    command = [sys.executable, "-m", "recipes.quickstart_cpu.prepare", "--output", str(models)]
    subprocess.run(command, cwd=ROOT, check=True)
    return models


@pytest.fixture(scope="module")
def folder(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and a place for runs."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "models").symlink_to(models)
    for split, count in (("train", 16), ("val", 2)):
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", "minihack", "--variant", "room-ultimate"]
        options = ["--split", split, "--count", str(count), "--max-turns", "6"]
        output = ["--output", str(folder / "data" / f"{split}.parquet")]
        subprocess.run([*command, *options, *output], cwd=ROOT, check=True)
    return folder
