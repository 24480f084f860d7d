"""The real thing: two models with engines and servers in one run, interrupted by a signal, then resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
MARKER = "COMPRL_TEST_RUN"
START_SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models and data of the quickstart, and a place for the run."""
    folder = tmp_path_factory.mktemp("run")
    models = Path(os.environ.get("COMPRL_QUICKSTART", ROOT / "outputs" / "quickstart")) / "models"
    command = [sys.executable, "-m", "recipes.quickstart_cpu.prepare", "--output", str(models)]
    subprocess.run(command, cwd=ROOT, check=True)
    (folder / "models").symlink_to(models)
    for split, count in (("train", 16), ("val", 2)):
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", "minihack", "--variant", "room-ultimate"]
        options = ["--split", split, "--count", str(count), "--max-turns", "6"]
        output = ["--output", str(folder / "data" / f"{split}.parquet")]
        subprocess.run([*command, *options, *output], cwd=ROOT, check=True)
    return folder


def comprl_bank(folder: Path, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verl_comprl.cli.main", "bank", action, "--path", str(folder / "run" / "bank")]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


class Run:
    """A training run in a process of its own; everything it starts carries its marker in the environment."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.marker = uuid.uuid4().hex
        self.beside: list[subprocess.CompletedProcess[str]] = []
        self.probe = folder / "probe.jsonl"
        self.output = folder / f"output-{self.marker}.txt"
        environment = os.environ | {
            MARKER: self.marker,
            "COMPRL_QUICKSTART": str(folder),
            "TENSORBOARD_DIR": str(folder / "tensorboard"),
            "VERL_PLATFORM": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
        }
        command = [
            *(sys.executable, str(ROOT / "tests/trainer/probed_run.py"), str(self.probe)),
            *("--config-dir", str(ROOT / "recipes/quickstart_cpu"), "--config-name", "quickstart"),
            *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
            *("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
            *("comprl.warmup_steps=1", "comprl.extractor.batch_size=8"),
            # Between the outcomes: a batch of nothing but failures, which has no gradient, becomes unlikely.
            "comprl.extractor.format_failure_reward=0.0",
            *overrides,
        ]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while text not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.5)

    def processes(self) -> list[str]:
        """Names of the processes that this run has started and that are still there, after a moment to end."""
        deadline = time.monotonic() + 10
        while True:
            found = []
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if process.environ().get(MARKER) == self.marker and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(f"{process.pid} {process.name()}")
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


@pytest.fixture(scope="module")
def interrupted(folder) -> Run:
    """A run that got SIGTERM after its first step."""
    run = Run(folder, "trainer.total_training_steps=1000")
    try:
        run.wait_for("step 1/1000")
        actions = (("stats", "--json"), ("verify",), ("delete", "--where", "uses=0", "--yes"))
        run.beside = [comprl_bank(folder, *action) for action in actions]
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(timeout=300)
    finally:
        run.process.kill()
    return run


@pytest.fixture(scope="module")
def resumed(folder, interrupted) -> Run:
    """The same run, started again, to its end."""
    step = int((folder / "run" / "latest_checkpointed_iteration.txt").read_text())
    run = Run(folder, f"trainer.total_training_steps={step + 2}")
    try:
        run.process.wait(timeout=START_SECONDS)
    finally:
        run.process.kill()
    return run


def test_a_bank_that_is_open_elsewhere_ends_the_start_with_one_line(folder):
    holder = "import asyncio, sys\nfrom verl_comprl.experience import *\n"
    holder += "embedder = SentenceTransformerEmbedder('builtin', device='cpu')\n"
    holder += "bank = asyncio.run(ExperienceBank.open(BankConfig(path=sys.argv[1]), embedder))\n"
    holder += "print('open', flush=True)\nsys.stdin.read()\n"
    path = str(folder / "held")
    command = [sys.executable, "-c", holder, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "open\n"
        run = Run(folder, f"comprl.bank.path={path}", "trainer.resume_mode=disable")
        assert run.process.wait(timeout=START_SECONDS) == 2, run.text()
        process.kill()
    assert f"error: experience bank folder {path} is already open in process {process.pid}" in run.text()
    assert "Traceback" not in run.text()
    assert run.processes() == []


def probes(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "probe.jsonl").read_text().splitlines()]


def test_a_signal_leaves_a_checkpoint_and_no_process(folder, interrupted):
    assert interrupted.process.returncode == 130, interrupted.text()
    assert interrupted.processes() == []
    step = int((folder / "run" / "latest_checkpointed_iteration.txt").read_text())
    saved = folder / "run" / f"global_step_{step}"
    assert {"actor", "extractor", "comprl", "comprl.json", "data.pt"} <= {path.name for path in saved.iterdir()}
    assert json.loads((saved / "comprl.json").read_text())["step"] == step


def test_the_bank_can_be_read_beside_the_run(folder, interrupted):
    stats, verified, refused = interrupted.beside
    assert stats.returncode == 0, stats.stderr
    assert json.loads(stats.stdout)["embedding"]["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert verified.returncode == 0 and "nothing wrong" in verified.stdout, verified.stderr
    assert refused.returncode == 2 and "is already open in process" in refused.stderr
    assert not (folder / "run" / "bank" / "manager.json").exists()


def test_a_resumed_run_goes_on_where_it_was(folder, interrupted, resumed):
    assert resumed.process.returncode == 0, resumed.text()
    assert resumed.processes() == []
    step = int((folder / "run" / "latest_checkpointed_iteration.txt").read_text())
    assert f"step {step + 1}/{step + 2}" in resumed.text()
    assert f"step {step}/" not in resumed.text()
    versions = [line["version"] for line in probes(folder) if line["model"] == "extractor"]
    assert versions == sorted(versions)
    state = json.loads((folder / "run" / f"global_step_{step}" / "comprl.json").read_text())
    assert versions[-2] >= state["extractor_weight_version"]


def test_servers_have_the_weights_of_their_engines_after_updates(folder, interrupted, resumed):
    for model in ("actor", "extractor"):
        lines = [line for line in probes(folder) if line["model"] == model]
        assert len({line["version"] for line in lines}) > 1, f"{model} was never updated"
        for line in lines:
            differences = [abs(a - b) for a, b in zip(line["server"], line["engine"], strict=True)]
            assert max(differences) < 1e-4, line
        moved = [abs(a - b) for line in lines[1:] for a, b in zip(lines[0]["server"], line["server"], strict=True)]
        assert max(moved) > 1e-4, f"{model}'s server did not change"


def test_trainer_and_rollout_agree_and_the_method_is_at_work(interrupted, resumed):
    lines = [line for run in (interrupted, resumed) for line in run.text().splitlines() if line.startswith("step:")]
    steps = [dict(item.split(":", 1) for item in line.split(" - ") if ":" in item) for line in lines]
    metrics = steps[-1]
    assert float(metrics["training/rollout_probs_diff_mean"]) < 1e-2
    assert float(metrics["comprl/guided/rollouts"]) > 0
    assert float(metrics["comprl/free/rollouts"]) > 0
    assert float(metrics["comprl/bank/size"]) > 0
    assert float(metrics["comprl/operations/added"]) > 0
    assert any(float(step.get("comprl/extractor/grad_norm", 0)) > 0 for step in steps)
