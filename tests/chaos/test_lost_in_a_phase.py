"""A run that loses a process of its actor while it updates, copies weights or saves, with each of verl's trainers."""

import time
from pathlib import Path

import pytest
from arm_settings import AHEAD
from books import problems
from losing_run import LOSS
from running import Run, last_step, read_steps, warm_started, with_tasks

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

MOST_SECONDS = 60.0
WORKER, SERVER, LOOP = "worker 0 of the actor's engine", "the actor's server 0", "agent loop worker 0"
LOSSES = {
    "sync": [
        ("log-probs", WORKER),
        ("update", WORKER),
        ("update", SERVER),
        ("weight sync", WORKER),
        ("weight sync", SERVER),
        ("checkpoint", WORKER),
        ("checkpoint", LOOP),
    ],
    "colocate_async": [("update", WORKER), ("update", SERVER), ("weight sync", SERVER)],
    "separate_async": [("update", WORKER), ("update", SERVER), ("weight sync", SERVER)],
}
TRAINERS = {"sync": [], "colocate_async": AHEAD, "separate_async": ["shared/trainer=separate_async"]}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_ends_within_a_minute_and_the_next_start_resumes(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_tasks(tmp_path, warm_started())
    common = [*TRAINERS[trainer], "trainer.save_freq=1"]
    for phase, name in LOSSES[trainer]:
        monkeypatch.setenv(LOSS, f"{phase}:{name}")
        run = Run(folder, *common, "trainer.total_training_steps=1000", script="losing_run.py")
        try:
            run.wait_until(run.probe.exists, pause=0.1)
            killed = time.monotonic()
            code = run.process.wait(timeout=300)
            took = time.monotonic() - killed
        finally:
            run.process.kill()
        print(f"{trainer}, {phase}, {name}: {took:.0f} s, left: {run.leftovers()}", flush=True)
        assert code not in (0, 130), run.text()
        assert took < MOST_SECONDS
        assert f"{name} has died" in run.text()
        assert run.processes() == []
    last = last_step(folder / "run") + 1
    run = Run(folder, *common, f"trainer.total_training_steps={last}")
    assert run.process.wait(timeout=600) == 0, run.text()
    assert run.leftovers() == []
    steps = [step["step"] for step in read_steps(folder / "run")]
    assert steps[-1] == last and len(set(steps)) == len(steps)
    if trainer == "sync":
        assert problems(folder / "run") == []
