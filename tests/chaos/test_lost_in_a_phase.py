"""Kills a process of a run's actor in an update, a weight sync or a checkpoint, with each of verl's trainers."""

import json
import time
from pathlib import Path

import pytest
from arm_settings import TRAINERS
from books import problems
from losing_run import LOSS
from running import Run, last_step, read_steps, warm_started, with_tasks

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

MOST_SECONDS = 60.0
WORKER, SERVER, LOOP = "worker 0 of the actor's engine", "the actor's server 0", "agent loop worker 0"
CUT_SHORT = ("/dev/shm/verl_weights_", "/tmp/rl-colocate-zmq-")
"""Left by a copy of weights that a death has cut short (docs/reliability.md)."""
LOSSES = {
    "sync": [
        ("log-probs", WORKER),
        ("update", WORKER),
        ("update", SERVER),
        ("weight sync", WORKER),
        ("weight sync", SERVER),
        ("checkpoint", WORKER),
        ("checkpoint", SERVER),
        ("checkpoint", LOOP),
    ],
    "colocate_async": [("update", WORKER), ("update", SERVER), ("weight sync", SERVER)],
    "separate_async": [("update", WORKER), ("update", SERVER), ("weight sync", SERVER)],
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_ends_within_a_minute_and_the_next_start_resumes(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_tasks(tmp_path, warm_started())
    common = [*TRAINERS[trainer], "trainer.save_freq=1"]
    unlogged = set[int]()
    for phase, name in LOSSES[trainer]:
        before = last_step(folder / "run") if (folder / "run").exists() else 0
        monkeypatch.setenv(LOSS, f"{phase}:{name}")
        run = Run(folder, *common, "trainer.total_training_steps=1000", script="losing_run.py")
        try:
            run.wait_until(run.probe.exists, pause=0.1)
            killed = time.monotonic()
            code = run.process.wait(timeout=300)
            took = time.monotonic() - killed
        finally:
            run.process.kill()
        left = run.leftovers()
        print(f"{trainer}, {phase}, {name}: {took:.0f} s, left: {left}", flush=True)
        assert json.loads(run.probe.read_text()), f"{phase} was over when the process was killed"
        assert code not in (0, 130), run.text()
        assert took < MOST_SECONDS
        assert f"{name} has died" in run.text()
        assert [file for file in left if not file.startswith(CUT_SHORT)] == []
        for file in left:
            Path(file).unlink()
        if phase == "checkpoint":  # of the second step
            is_there = last_step(folder / "run") == before + 2
            assert is_there or last_step(folder / "run") == before + 1
            if name == LOOP:  # it may have died before it could say that no episodes wait there
                left_out = "1 agent loop has died with the episodes that waited there"
                assert is_there or left_out in (folder / "run/train.log").read_text()
            else:
                assert is_there == (name == SERVER), "a worker has to write its part, a server has none"
        # A step may have been saved before it was lost, and not yet have its line.
        unlogged |= {last_step(folder / "run")} - {step["step"] for step in read_steps(folder / "run")}
    last = last_step(folder / "run") + 1
    run = Run(folder, *common, f"trainer.total_training_steps={last}")
    assert run.process.wait(timeout=600) == 0, run.text()
    assert run.leftovers() == []
    steps = [step["step"] for step in read_steps(folder / "run")]
    assert steps == [step for step in range(1, last + 1) if step not in unlogged]
    if trainer == "sync":
        assert problems(folder / "run") == []
