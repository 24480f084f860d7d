"""A complete training run: both models with engines and servers, interrupted by a signal and resumed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from probes import read_probes
from running import ROOT, START_SECONDS, Run, check_record, last_step, read_steps, run_environment, undocumented

pytestmark = [pytest.mark.run, pytest.mark.timeout(1500)]


@pytest.mark.long
def test_a_bank_that_is_open_elsewhere_is_an_error_of_one_line(folder):
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
    assert run.leftovers() == []


def test_a_signal_leaves_a_checkpoint_and_no_process(folder, interrupted):
    assert interrupted.process.returncode == 130, interrupted.text()
    assert interrupted.left == []
    # The first checkpoint: a later run resumed from it and wrote more.
    step = min(int(path.name.rpartition("_")[2]) for path in (folder / "run").glob("global_step_*"))
    saved = folder / "run" / f"global_step_{step}"
    assert {"actor", "extractor", "comprl", "comprl.json", "data.pt"} <= {path.name for path in saved.iterdir()}
    assert json.loads((saved / "comprl.json").read_text())["step"] == step


def test_an_extractor_that_shares_memory_is_away_for_its_update_and_comes_back(folder, interrupted):
    lines = [json.loads(line)["data"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = next(line for line in lines if line["comprl/extractor/updates"] > 0)
    assert trained["comprl/extractor/away_seconds"] > 0 == trained["comprl/extractor/failed"]
    # Its turn is the end of a step; in the next one it answers and distils again.
    assert lines[-1]["comprl/extractor/away"] == 0 and lines[-1]["comprl/queue/dead"] == 0


def test_training_engines_and_nothing_else_keep_memory_that_they_have_freed(interrupted):
    workers = [name for name in interrupted.keeping_memory if name != "python"]  # those have started small helpers
    assert workers == ["ray::WorkerDict"] * 2


def test_the_bank_can_be_read_while_the_run_has_it_open(folder, interrupted):
    stats, verified, refused = interrupted.beside
    assert stats.returncode == 0, stats.stderr
    assert json.loads(stats.stdout)["embedding"]["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert verified.returncode == 0 and "no problems found" in verified.stdout, verified.stderr
    assert refused.returncode == 2 and "is already open in process" in refused.stderr
    assert not (folder / "run" / "bank" / "address.json").exists()


def test_the_terminal_gets_our_lines_and_no_metrics_of_verl(interrupted):
    assert "step 1/1000 · success " in interrupted.text() and "step:1 " not in interrupted.text()
    assert "PyTorch finds no GPU" in interrupted.text() or "VERL_PLATFORM=cpu is set" in interrupted.text()


def test_metrics_of_a_run_and_its_continuation_are_in_one_file(folder, interrupted, lent):
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, last_step(folder / "run") + 1))
    assert all(line["data"]["comprl/free/rollouts"] > 0 for line in lines)


def test_every_trained_episode_and_what_guided_it_is_on_disk(folder, interrupted, lent):
    check_record(folder / "run")
    assert (folder / "run" / "extractor_calls").is_dir()


def test_a_resumed_run_continues_from_the_checkpoint(folder, interrupted, lent):
    steps = [line["step"] for line in lent["resumed"]]
    assert len(steps) == 2 and last_step(folder / "run") == steps[-1]
    saved = json.loads((folder / "run" / f"global_step_{steps[0] - 1}" / "comprl.json").read_text())
    versions = [line["version"] for line in read_probes(folder / "resumed.jsonl", "extractor")]
    assert versions == sorted(versions) and versions[0] >= saved["extractor_weight_version"] > 0


def test_a_run_continues_from_a_checkpoint_of_every_save_freq_steps(folder, lent):
    """Such a checkpoint is written before the end of its step, whose outcomes and merge must be in it all the same."""
    number = last_step(folder / "run")
    checkpoint = folder / "run" / f"global_step_{number}"
    state = json.loads((checkpoint / "comprl/manager.json").read_text())
    assert state["step"] == number and (state["merging"] or state["totals"]["merges"] > 0)
    assert json.loads((checkpoint / "comprl/buffer/samples.json").read_text())["uses"] == []
    (step,) = lent["continued"]
    assert step["step"] == number + 1
    assert step["comprl/guides/found"] > state["totals"]["guides"]["found"] > 0
    assert step["comprl/operations/added"] >= state["totals"]["operations"]["added"] > 0
    updates = json.loads((checkpoint / "comprl.json").read_text())["extractor_weight_version"]
    assert step["comprl/extractor/updates"] >= updates > 0


def test_a_resumed_run_has_the_weights_that_were_saved(folder, interrupted, lent):
    """Its engines were shared with other runs, which had changed their weights."""
    saved = folder / "run" / f"global_step_{lent['resumed'][0]['step'] - 1}"
    state = json.loads((saved / "comprl.json").read_text())
    for model, version in (("actor", state["step"]), ("extractor", state["extractor_weight_version"])):
        (start,) = read_probes(folder / "resumed.start", model)
        assert start["version"] == version
        # The extractor may have been updated between a probe and the checkpoint that followed.
        same = [line for line in read_probes(interrupted.probe, model) if line["version"] == start["version"]]
        assert same or model == "extractor"
        assert all(start["fixed"] == pytest.approx(line["fixed"], abs=1e-6) for line in same)
        assert start["fixed"] != pytest.approx(read_probes(folder / "resumed.jsonl", model)[-1]["fixed"], abs=1e-4)


def test_servers_have_the_weights_of_their_engines_after_updates(folder, interrupted, lent):
    for model in ("actor", "extractor"):
        lines = [line for file in (interrupted.probe, folder / "resumed.jsonl") for line in read_probes(file, model)]
        assert len({line["version"] for line in lines}) > 1, f"{model} was never updated"
        for line in lines:
            differences = [abs(a - b) for a, b in zip(line["server"], line["engine"], strict=True)]
            assert max(differences) < 1e-4, line
        moved = [abs(a - b) for line in lines[1:] for a, b in zip(lines[0]["server"], line["server"], strict=True)]
        assert max(moved) > 1e-4, f"{model}'s server did not change"


def test_trainer_and_rollout_agree_and_the_method_takes_effect(folder, interrupted, lent):
    steps = lent["resumed"]
    metrics = steps[-1]
    assert metrics["training/rollout_probs_diff_mean"] < 1e-2
    assert metrics["comprl/guided/rollouts"] > 0
    assert metrics["comprl/free/rollouts"] > 0
    assert metrics["comprl/bank/size"] > 0
    assert metrics["comprl/operations/added"] > 0
    # Of all steps, since a batch whose rewards are all equal changes nothing.
    assert any(step.get("comprl/extractor/grad_norm", 0) > 0 for step in read_steps(folder / "run"))
    assert undocumented({name for step in steps for name in step}) == []


def check_result(folder: Path, result: dict, step: int) -> None:
    assert (result["step"], result["sampling"]["temperature"]) == (step, 0.0)
    assert result["tasks"].keys() == {"minihack/room-ultimate"}
    for arm in ("with", "without"):
        measured = result["average"][arm]
        assert measured["success_low"] <= measured["success"] <= measured["success_high"]
    # The command fails if the evaluation changed the bank; here the bank is the checkpoint's.
    manifest = json.loads((Path(result["bank"]["snapshot"]) / "manifest.json").read_text())
    assert result["bank"]["sha256"] == manifest["sha256"]["data/entries.parquet"]


def test_a_checkpoint_is_evaluated(folder, lent):
    check_result(folder, json.loads((folder / "result.json").read_text()), last_step(folder / "run") - 2)


@pytest.mark.long
def test_the_evaluate_command_changes_nothing_in_the_run(folder, lent):
    step = last_step(folder / "run")
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")}
    command = [sys.executable, "-m", "verl_comprl.cli.main", "evaluate", "--greedy"]
    command += ["--checkpoint", str(folder / "run" / f"global_step_{step}"), "--output", str(folder / "again.json")]
    environment = {name: value for name, value in run_environment(folder).items() if "VERL" not in name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "again.json").read_text())
    assert json.loads(done.stdout) == result
    check_result(folder, result, step)
    assert {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")} == before
