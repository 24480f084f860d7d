"""Training runs on a Ray cluster: of the launcher, on two nodes, and on one that was there before."""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clusters import IPS, Cluster, two_namespaces
from running import ROOT, START_SECONDS, Run, read_steps, run_environment

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]

STEPS = ("trainer.total_training_steps=2", "trainer.resume_mode=disable", "comprl.drain_timeout=0")


def test_two_nodes_of_torchrun_train_both_models(folder: Path, tmp_path: Path) -> None:
    """Each node has one slot, so that actor and extractor are on different ones."""
    recipe = ["--config-dir", str(ROOT / "recipes"), "--config-name", "minihack_small/cpu", *STEPS]
    batch = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "comprl.warmup_steps=1"]
    checkpoint = ["trainer.save_freq=2", "trainer.test_freq=-1", "trainer.val_before_train=false"]
    command = ["-m", "verl_comprl.launch", *recipe, *batch, *checkpoint, "comprl.extractor.batch_size=8"]
    variables = run_environment(folder) | {"COMPRL_RUN": str(tmp_path / "run")}
    variables["COMPRL_RAY_START"] = "--num-gpus 1 --num-cpus 32"
    with two_namespaces() as entered:
        within, address = (entered, IPS[0]) if entered else (((), ()), "127.0.0.1")
        cluster = Cluster(tmp_path, command, within=within, address=address, variables=variables)
        try:
            for node in (0, 1):
                cluster.start(node)
            assert cluster.wait(START_SECONDS) == [0, 0], cluster.text()
            assert cluster.left_after(10) == []
        finally:
            cluster.kill()
    assert [line["step"] for line in read_steps(tmp_path / "run")] == [1, 2]
    assert {"actor", "extractor", "comprl"} <= {path.name for path in (tmp_path / "run/global_step_2").iterdir()}


@pytest.fixture
def running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """A Ray that knows nothing of this package's settings and works in another folder; the run finds it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", str(port)]
    temporary = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    # Its sockets need a shorter path than pytest's.
    options = ["--num-gpus", "2", "--num-cpus", "40", "--include-dashboard", "0", "--temp-dir", temporary.name]
    for name, value in (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", secrets.token_hex(32))):  # of cluster and driver
        monkeypatch.setenv(name, value)
    unset = ("VERL_PLATFORM", "VERL_LOGGING_LEVEL", "VLLM_LOGGING_LEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_RPC_BASE_PATH": temporary.name}
    with (tmp_path / "ray.txt").open("wb") as output:
        ray = subprocess.Popen([*start, *options], cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in (tmp_path / "ray.txt").read_text():
            assert ray.poll() is None and time.monotonic() < deadline, (tmp_path / "ray.txt").read_text()
            time.sleep(0.5)
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        yield psutil.Process(ray.pid)
    finally:
        ray.terminate()
        ray.wait(60)
        temporary.cleanup()


def workers(ray: psutil.Process) -> list[str]:
    """Names of the processes that work for a job."""
    titles = [" ".join(process.cmdline()) for process in ray.children(recursive=True) if process.is_running()]
    return [title for title in titles if re.match(r"ray::(?!IDLE|\w*Agent\b)|VLLM", title)]


def test_a_running_cluster_is_used_and_left_as_it_was(folder: Path, tmp_path: Path, running_cluster) -> None:
    needed = Run(folder, *STEPS, "trainer.n_gpus_per_node=2")
    assert needed.process.wait(timeout=START_SECONDS) == 2, needed.text()
    assert "Ray has 2 device slots (GPU), but 3 are needed" in needed.text() and "COMPRL_RAY_START" in needed.text()
    relative = os.path.relpath(tmp_path / "run", ROOT)  # from the launcher's folder, which is not the cluster's
    run = Run(folder, *STEPS, "trainer.save_freq=2", f"trainer.default_local_dir={relative}")
    assert run.process.wait(timeout=START_SECONDS) == 0, run.text()
    assert run.leftovers() == []
    assert [line["step"] for line in read_steps(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run/global_step_2/actor").is_dir()
    deadline = time.monotonic() + 60
    while (left := workers(running_cluster)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == [] and running_cluster.is_running()
