"""A sweep in which a run with engines of its own comes between two that share theirs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from arm_settings import SEPARATE, SMALL
from running import ROOT, START_SECONDS, read_steps, run_environment

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(2400)]

COMMON = ["trainer.resume_mode=disable", "trainer.total_training_steps=1", "comprl.drain_timeout=0"]
COMMON += ["comprl.warmup_steps=0", "actor_rollout_ref.rollout.n=4"]
RUNS = {"before": [], "separate": SEPARATE, "after": []}


def test_a_run_with_servers_of_its_own_between_runs_that_share_theirs(folder: Path) -> None:
    sweep = folder / "own_engines"
    sweep.mkdir()
    common = [*SMALL, *COMMON, f"trainer.default_local_dir={sweep}"]
    runs = [{"name": name, "overrides": [*common, *overrides]} for name, overrides in RUNS.items()]
    (sweep / "runs.json").write_text(json.dumps(runs))
    command = [sys.executable, "-m", "verl_comprl.sweep", "--config-dir", str(ROOT / "recipes")]
    command += ["--config-name", "minihack_small/cpu", "--runs", str(sweep / "runs.json")]
    output = sweep / "output.txt"
    with output.open("w") as log:
        environment = run_environment(folder)
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=3 * START_SECONDS)
    assert done.returncode == 0, output.read_text()[-5000:]
    records = [json.loads(line) for line in (sweep / "sweep.jsonl").read_text().splitlines()]
    assert [(record["name"], record["status"]) for record in records] == [(name, "finished") for name in RUNS]
    steps = {name: read_steps(sweep / name) for name in RUNS}
    # All prompts of a step, with two local updates of two prompts in the run of its own.
    rollouts = {"before": 2 * 4, "separate": 4 * 4, "after": 2 * 4}
    for name, (step,) in steps.items():
        assert step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == rollouts[name]
        assert step["training/rollout_probs_diff_mean"] < 1e-2, "the server has other weights than the engine"
        says = "engines of its own: trainer.v1.trainer_mode" in (sweep / name / "train.log").read_text()
        assert says == (name == "separate")
