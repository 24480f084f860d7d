"""The shell scripts of README and docs run as written, on a copy of a run."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from documented import ROOT, pages

from verl_comprl.record import RunRecord

RUN = ROOT / "examples/run"
SCRIPTS = {(page.name, number): script for page in pages() for number, script in enumerate(page.scripts())}
FOR_VERLS_VIEWER = ("docs/run_folder.md", 0)


def run(script: str, folder: Path) -> None:
    shutil.copytree(RUN, folder / "RUN")
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, timeout=60)


def test_every_script_has_a_test() -> None:
    assert SCRIPTS.keys() == {FOR_VERLS_VIEWER}


def test_verls_rollout_viewer_gets_a_file_for_each_step(tmp_path: Path) -> None:
    run(SCRIPTS[FOR_VERLS_VIEWER], tmp_path)
    record = RunRecord(RUN)
    files = {file.name: file for file in (tmp_path / "FOLDER").iterdir()}
    assert files.keys() == {f"{step}.jsonl" for step in record.steps()} and len(files) > 20
    for step in record.steps():
        episodes = [json.loads(line) for line in files[f"{step}.jsonl"].read_text(encoding="utf-8").splitlines()]
        assert episodes == list(record.episodes([step]))
        assert {episode["step"] for episode in episodes} == {step}


@pytest.mark.slow
def test_its_files_are_like_those_that_verl_writes_for_it(tmp_path: Path) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    run(SCRIPTS[FOR_VERLS_VIEWER], tmp_path)
    of_verl = tmp_path / "verl"
    PPOTrainer._write_generations(["in"], ["out"], ["truth"], [1.0], {}, str(of_verl), 7)
    (file,) = of_verl.iterdir()
    (rollout,) = [json.loads(line) for line in file.read_text().splitlines()]
    first, *_ = (tmp_path / "FOLDER" / file.name).read_text(encoding="utf-8").splitlines()
    episode = json.loads(first)
    assert {key: type(value) for key, value in rollout.items()} == {key: type(episode[key]) for key in rollout}
