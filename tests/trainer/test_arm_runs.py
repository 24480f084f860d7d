"""Arms in real runs of two steps."""

from pathlib import Path

import pytest
import torch
from running import START_SECONDS, Run
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def finished(folder: Path, *overrides: str, script: str = "") -> Run:
    run = Run(folder, "trainer.total_training_steps=2", *overrides, script=script)
    try:
        assert run.process.wait(timeout=START_SECONDS) == 0, run.text()
    finally:
        run.process.kill()
    return run


def weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)  # verl's own format
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def test_the_baseline_is_verls_grpo_bit_for_bit(folder: Path) -> None:
    """The same rollouts, kept by verl itself, through verl's trainer alone and through ours without experience."""
    kept = ["skip.rollout_tq.enable=true", f"skip.rollout_tq.dump_dir={folder / 'rollouts'}"]
    kept += ["skip.rollout_tq.steps=[1,2]", "trainer.save_freq=2", "arm=baseline"]
    finished(folder, *kept, f"trainer.default_local_dir={folder / 'plain'}", script="plain_run.py")
    rollouts = sorted((folder / "rollouts").rglob("tq_batch.pt"))
    made = [file.stat().st_mtime_ns for file in rollouts]
    assert len(rollouts) == 2
    ours = finished(folder, *kept, f"trainer.default_local_dir={folder / 'ours'}")
    assert [file.stat().st_mtime_ns for file in rollouts] == made, "the second run made rollouts of its own"
    assert "bank entries" not in ours.text() and not (folder / "ours" / "bank").exists()
    theirs, same = weights(folder / "plain"), weights(folder / "ours")
    assert theirs.keys() == same.keys()
    assert all(torch.equal(theirs[name], same[name]) for name in theirs)
    start = load_file(folder / "models" / "actor" / "model.safetensors")
    assert any(not torch.equal(start[name], same[name]) for name in start), "nothing was learnt"
