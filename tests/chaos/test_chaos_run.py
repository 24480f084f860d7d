"""One real run whose parts are broken one after the other; it ends well, and its books agree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from books import problems
from faults import environments, kill, manager, stopped
from qdrant_double import QdrantDouble
from running import Run, read_steps, undocumented

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]

STEPS = 7


@pytest.fixture(scope="module")
def store() -> Any:
    double = QdrantDouble().start()
    yield double
    double.close()


def test_a_run_survives_what_is_broken_in_it_and_its_books_agree(folder: Path, store: QdrantDouble) -> None:
    run = Run(
        folder,
        f"trainer.total_training_steps={STEPS}",
        "comprl.environments.isolation=process",
        "comprl.environments.step_timeout=5",
        "comprl.environments.reset_timeout=40",
        f"comprl.bank.url={store.url}",
        "comprl.warmup_steps=0",
    )
    steps = folder / "run/metrics.jsonl"

    def finished() -> int:
        return len(steps.read_text().splitlines()) if steps.exists() else 0

    def until(step: int) -> None:
        run.wait_until(lambda: finished() >= step)

    try:
        until(1)
        kill(run_until(run, lambda: environments(run))[:1])
        with stopped(run_until(run, lambda: environments(run))[:1]):  # for longer than a step of it may take
            until(2)
        kill(manager(run))
        until(3)
        store.stop()  # its processes are gone
        until(4)
        store.start()
        store.faults.responses = [(503, {})] * 20
        until(5)
        store.faults.delay = 2.0
        until(6)
        store.faults.delay = 0.0
        code = run.process.wait(timeout=600)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    assert run.processes() == []

    measured = read_steps(folder / "run")
    assert [step["step"] for step in measured] == list(range(1, STEPS + 1))
    assert sum(step["comprl/rollouts/failed/environment"] for step in measured) >= 2
    assert {step["comprl/rollouts/failed/server"] for step in measured} == {0}
    assert [step["comprl/manager_restarts"] for step in measured][-1] == 1
    assert sum(step["comprl/degraded"] for step in measured) > 0
    assert undocumented({name for step in measured for name in step}) == []
    assert problems(folder / "run") == []


def run_until(run: Run, find: Callable[[], list]) -> list:
    """Return what ``find`` finds, once it finds something."""
    found: list = []
    run.wait_until(lambda: found.extend(find()) or found)
    return found
