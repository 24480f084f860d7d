"""Launchers' variables, as torchrun itself sets them, and those of SLURM and MPI."""

import json
import os
import subprocess
import sys

import pytest

from verl_comprl.platform.launchers import node_count, strip_launcher_variables


def test_others_launchers_variables_are_stripped_and_nothing_else():
    kept = {"PATH": "/bin", "RANKING": "x", "WORLD": "x", "NCCL_DEBUG": "INFO", "TORCH_HOME": "/t", "HOME": "/root"}
    kept |= dict.fromkeys(("LOCAL_SCRATCH", "ROLE_ARN", "GROUP_NAME", "MASTER_KEY", "LOCAL_RANKS"), "the user's")
    gone = ("SLURM_JOB_ID", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    gone += ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME")
    gone += tuple(f"{group}_{name}" for group in ("LOCAL", "GROUP", "ROLE") for name in ("RANK", "WORLD_SIZE"))
    environment = kept | dict.fromkeys(gone, "1")
    strip_launcher_variables(environment)
    assert environment == kept


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, {"ROCR_VISIBLE_DEVICES": "0,1"}),
    ],
)
def test_of_the_devices_that_slurm_names_for_two_makers_one_is_left(given: dict[str, str], left: dict[str, str]):
    """Workers of verl raise if both are set."""
    strip_launcher_variables(given)
    assert given == left


@pytest.mark.slow
def test_nothing_is_left_of_a_real_torchrun(tmp_path):
    script = tmp_path / "show.py"
    script.write_text("import json, os\nprint('found', json.dumps(dict(os.environ)))")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "SLURM"))}
    environment["OMP_NUM_THREADS"] = "2"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(script)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stdout
    found = json.loads(output.partition("found ")[2])
    assert found["TORCHELASTIC_USE_AGENT_STORE"] == "True" and node_count(found) == 1
    strip_launcher_variables(found)
    # torchrun leaves TORCHELASTIC_ERROR_FILE and the like to its children, all of which must be gone.
    assert found.keys() <= environment.keys() | {"LC_CTYPE"}
