"""The SLURM script and the KubeRay manifest, without either."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from verl_comprl.config.reading import unknown_overrides

CLUSTER = Path(__file__).parents[2] / "recipes/cluster"


def submit(folder: Path, srun: str) -> subprocess.Popen[str]:
    """Start the script with stand-ins for SLURM's programs; ``srun`` is the body of one of them."""
    for name, body in {"scontrol": "echo node07; echo node08", "srun": srun}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[07-08]"}
    environment = os.environ | job | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", str(CLUSTER / "slurm.sh"), "trainer.nnodes=1", "comprl.merge.every=3"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_when_up(job: subprocess.Popen[str], up: Path) -> None:
    deadline = time.monotonic() + 30
    while not up.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)


def test_slurm_starts_one_torchrun_per_node_with_the_same_arguments(tmp_path: Path) -> None:
    job = submit(tmp_path, 'printf "%s\\n" "$@"')
    done = job.communicate(timeout=60)[0].splitlines()
    assert job.returncode == 0
    given = done[done.index("torchrun") + 1 :]
    assert given[given.index("--rdzv-endpoint") + 1] == "node07:24711" and given[given.index("--nnodes") + 1] == "2"
    assert given[given.index("-m") :] == ["-m", "verl_comprl.launch", "trainer.nnodes=1", "comprl.merge.every=3"]


def test_slurms_signal_reaches_the_training_and_not_torchrun(tmp_path: Path) -> None:
    """By torchrun a time limit would begin. The script waits for the checkpoint, and ends with the run's code."""
    torchrun = f"""
trap 'touch {tmp_path}/torchrun_was_told' TERM
touch {tmp_path}/up
while [ ! -e {tmp_path}/told ]; do sleep 0.05; done
sleep 0.5
touch {tmp_path}/checkpoint
exit 9"""
    told = f'printf "%s\\n" "$@" > {tmp_path}/words; mv {tmp_path}/words {tmp_path}/told; echo node08 was told'
    job = submit(tmp_path, f'if [ "$1" = --overlap ]; then {told}; else {torchrun}\nfi')
    stop_when_up(job, tmp_path / "up")
    assert job.communicate(timeout=30) == ("node08 was told\n", "") and job.returncode == 9
    assert (tmp_path / "checkpoint").exists() and not (tmp_path / "torchrun_was_told").exists()
    words = (tmp_path / "told").read_text().splitlines()
    # On all nodes: torchrun decides which one has the training.
    assert words[words.index("--nodes") + 1] == "2" and "--nodelist" not in words and "--ntasks-per-node=1" in words
    command = words[words.index("-c") + 1]
    found = re.match(r'pkill -TERM -f -- "([^"]+)"', command)
    assert found
    driver = "/usr/bin/python -m verl_comprl.train trainer.nnodes=1"  # and neither launcher nor the command itself
    assert re.search(found[1], driver)
    assert not re.search(found[1], driver.replace("train ", "launch ")) and not re.search(found[1], command)


@pytest.mark.parametrize(
    ("told", "line", "code"),
    [
        ("true", "slurm.sh: no node has the training; the job ends without it\n", 7),
        ("touch done; false", "slurm.sh: the training could not be told to stop\n", 9),
    ],
)
def test_slurms_signal_that_reaches_no_training_is_said(tmp_path: Path, told: str, line: str, code: int) -> None:
    """Without a training torchrun is told, so that the job does not wait for its time limit."""
    torchrun = "trap 'exit 7' TERM; touch up; while [ ! -e done ]; do sleep 0.05; done; exit 9"
    job = submit(tmp_path, f'cd {tmp_path}; if [ "$1" = --overlap ]; then {told}; else {torchrun}\nfi')
    stop_when_up(job, tmp_path / "up")
    assert job.communicate(timeout=60) == ("", line) and job.returncode == code


def test_the_manifest_has_as_many_gpus_as_its_run_needs() -> None:
    spec = yaml.safe_load((CLUSTER / "kuberay.yaml").read_text())["spec"]
    python, module, name, *overrides = spec["entrypoint"].split()
    assert (python, module, name) == ("python", "-m", "verl_comprl.train") and not unknown_overrides(overrides)
    given = dict(override.split("=") for override in overrides)
    assert float(given["actor_rollout_ref.actor.clip_ratio_c"]) == 1e9  # no dual clip, as in all recipes
    assert {float(given[f"{model}.actor.optim.weight_decay"]) for model in ("actor_rollout_ref", "extractor")} == {0.0}
    needed = int(given["trainer.nnodes"]) * int(given["trainer.n_gpus_per_node"])
    needed += int(given["comprl.extractor.n_gpus_per_node"])
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert needed == workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    (head,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["image"] == container["image"] and head["volumeMounts"] == container["volumeMounts"]
