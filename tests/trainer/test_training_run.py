"""The real thing: two models with engines and servers in one run, interrupted by a signal, then resumed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, START_SECONDS, Run, comprl_bank, run_environment, undocumented

from verl_comprl.experience.snapshot import snapshot_checksum

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def interrupted(folder) -> Run:
    """A run that got SIGTERM after its first step."""
    run = Run(folder, "trainer.total_training_steps=1000", script="probed_run.py")
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
    run = Run(folder, f"trainer.total_training_steps={step + 2}", script="probed_run.py")
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
    assert undocumented({name for step in steps for name in step}) == []


@pytest.mark.long
def test_a_checkpoint_is_evaluated_and_nothing_of_the_run_changes(folder, resumed):
    step = int((folder / "run" / "latest_checkpointed_iteration.txt").read_text())
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")}
    command = [sys.executable, "-m", "verl_comprl.cli.main", "evaluate", "--greedy"]
    command += ["--checkpoint", str(folder / "run" / f"global_step_{step}"), "--output", str(folder / "result.json")]
    environment = {name: value for name, value in run_environment(folder).items() if "VERL" not in name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert json.loads(done.stdout) == result
    assert (result["step"], result["sampling"]["temperature"]) == (step, 0.0)
    assert result["tasks"].keys() == {"minihack/room-ultimate"}
    for arm in ("with", "without"):
        measured = result["average"][arm]
        assert measured["success_low"] <= measured["success"] <= measured["success_high"]
    # The command fails if the bank that it was given is not what it was; here it is the checkpoint's.
    assert result["bank"]["sha256"] == snapshot_checksum(result["bank"]["snapshot"])
    assert {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")} == before
