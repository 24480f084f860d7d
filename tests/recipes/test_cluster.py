"""The SLURM script and the KubeRay manifest, without either."""

import os
import subprocess
from pathlib import Path

import yaml

from verl_comprl.config.reading import unknown_overrides

CLUSTER = Path(__file__).parents[2] / "recipes/cluster"


def test_slurm_starts_one_torchrun_per_node_with_the_same_arguments(tmp_path: Path) -> None:
    for name, body in {"scontrol": "echo node07; echo node08", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[07-08]"}
    environment = os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(CLUSTER / "slurm.sh"), "trainer.nnodes=1", "comprl.merge.every=3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    given = done[done.index("torchrun") + 1 :]
    assert given[given.index("--rdzv-endpoint") + 1] == "node07:24711" and given[given.index("--nnodes") + 1] == "2"
    assert given[given.index("-m") :] == ["-m", "verl_comprl.launch", "trainer.nnodes=1", "comprl.merge.every=3"]


def test_the_manifest_has_as_many_gpus_as_its_run_needs() -> None:
    spec = yaml.safe_load((CLUSTER / "kuberay.yaml").read_text())["spec"]
    python, module, name, *overrides = spec["entrypoint"].split()
    assert (python, module, name) == ("python", "-m", "verl_comprl.train") and not unknown_overrides(overrides)
    given = dict(override.split("=") for override in overrides)
    needed = int(given["trainer.nnodes"]) * int(given["trainer.n_gpus_per_node"])
    needed += int(given["comprl.extractor.n_gpus_per_node"])
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert needed == workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    (head,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["image"] == container["image"] and head["volumeMounts"] == container["volumeMounts"]
