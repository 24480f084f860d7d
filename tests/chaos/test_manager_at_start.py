"""The experience manager is killed while the models of a run load, which takes longer than all else at a start."""

from pathlib import Path

import pytest
from books import problems
from faults import kill, manager
from running import Run, last_step

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1200)]


def test_a_run_whose_manager_is_killed_while_the_models_load_starts_all_the_same(folder: Path) -> None:
    run = Run(folder, "trainer.total_training_steps=2", "trainer.save_freq=2", "comprl.warmup_steps=0")
    try:
        run.wait_until(lambda: "starting the models" in run.text())
        kill(manager(run))
        code = run.process.wait(timeout=900)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    assert last_step(folder / "run") == 2 and problems(folder / "run") == []
    assert run.leftovers() == []
