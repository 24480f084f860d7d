"""Arms in real runs of two steps."""

from pathlib import Path

import pytest
import torch
from running import START_SECONDS, Run
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


STEPS = 4
# One prompt per step: verl draws the order of several anew in every run, and sums are not associative.
KEPT = (
    "arm=baseline",
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={STEPS}",
    "skip.rollout_tq.enable=true",
    f"skip.rollout_tq.steps={list(range(1, STEPS + 1))}".replace(" ", ""),
)


def start(folder: Path, name: str, script: str) -> Run:
    places = (f"skip.rollout_tq.dump_dir={folder / 'rollouts'}", f"trainer.default_local_dir={folder / name}")
    return Run(folder, *KEPT, *places, script=script)


def finish(*runs: Run) -> None:
    try:
        for run in runs:
            assert run.process.wait(timeout=START_SECONDS) == 0, run.text()
    finally:
        for run in runs:
            run.process.kill()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / f"global_step_{STEPS}" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)  # verl's own format
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def test_the_baseline_is_verls_grpo_bit_for_bit(folder: Path) -> None:
    """The same rollouts, kept and played back by verl itself, through verl's trainer alone and through ours."""
    finish(start(folder, "kept", "plain_run.py"))
    rollouts = sorted((folder / "rollouts").rglob("tq_batch.pt"))
    made = [file.stat().st_mtime_ns for file in rollouts]
    assert len(rollouts) == STEPS
    plain, ours = start(folder, "plain", "plain_run.py"), start(folder, "ours", "")
    finish(plain, ours)
    assert [file.stat().st_mtime_ns for file in rollouts] == made, "a run made rollouts of its own"
    assert "bank entries" not in ours.text() and not (folder / "ours" / "bank").exists()
    theirs, same = weights(folder / "plain"), weights(folder / "ours")
    assert theirs.keys() == same.keys()
    assert all(torch.equal(theirs[name], same[name]) for name in theirs)
    before = load_file(folder / "models" / "actor" / "model.safetensors")
    assert any(not torch.equal(before[name], same[name]) for name in before), "nothing was learnt"
