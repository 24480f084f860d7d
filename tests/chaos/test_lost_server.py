"""A run that loses a process of its actor or of TransferQueue ends within a minute, and says so; the next resumes."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from books import problems
from running import Run, last_step, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

MOST_SECONDS = 60.0


def engine(server: psutil.Process) -> psutil.Process:
    (found,) = [child for child in server.children(recursive=True) if "EngineCore" in " ".join(child.cmdline())]
    return found


def test_a_process_of_the_actor_that_dies_ends_the_run_within_a_minute_and_the_next_start_resumes(folder: Path) -> None:
    lose(folder, "the actor's server 0", lambda server: server)
    lose(folder, "the actor's server 0", engine)
    lose(folder, "worker 0 of the actor's engine", lambda worker: worker)
    lose(folder, "agent loop worker 0", lambda worker: worker)
    lose(folder, "reward worker 0", lambda worker: worker)
    lose(folder, "TransferQueue", lambda controller: controller)
    last = last_step(folder / "run") + 1
    run = Run(folder, f"trainer.total_training_steps={last}", "trainer.save_freq=1")
    assert run.process.wait(timeout=600) == 0, run.text()
    assert [step["step"] for step in read_steps(folder / "run")] == list(range(1, last + 1))
    assert problems(folder / "run") == []


def lose(folder: Path, name: str, victim: Callable[[psutil.Process], psutil.Process]) -> None:
    """Run until a step has been saved, then kill the victim of a named process; checks how the run ends."""
    run = Run(folder, "trainer.total_training_steps=1000", "trainer.save_freq=1", script="named_run.py")
    steps = folder / "run/metrics.jsonl"
    before = len(steps.read_text().splitlines()) if steps.exists() else 0
    try:
        run.wait_until(lambda: steps.exists() and len(steps.read_text().splitlines()) > before)
        victim(psutil.Process(json.loads(run.probe.read_text())[name])).kill()
        killed = time.monotonic()
        code = run.process.wait(timeout=300)
        took = time.monotonic() - killed
    finally:
        run.process.kill()
    assert code not in (0, 130), run.text()
    assert took < MOST_SECONDS
    assert f"{name} has died" in run.text()
    assert run.processes() == []
