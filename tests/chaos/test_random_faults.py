"""A real run in which one part after the other breaks at random; it ends well, and its books agree.

``COMPRL_FAULTS=50 pytest -m long tests/chaos/test_random_faults.py`` breaks 50 things, in about an hour.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from books import problems
from faults import environments, kill, manager, stopped
from qdrant_double import QdrantDouble
from running import Run, last_step, read_steps

FAULTS = int(os.environ.get("COMPRL_FAULTS", "8"))
LONGEST = 30.0
"""Seconds that a fault lasts at most."""

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(120 * FAULTS + 900)]


@pytest.fixture(scope="module")
def store() -> Iterator[QdrantDouble]:
    double = QdrantDouble().start()
    yield double
    double.close()


@contextmanager
def away(store: QdrantDouble) -> Iterator[None]:
    store.stop()
    yield
    store.start()


@contextmanager
def slow(store: QdrantDouble) -> Iterator[None]:
    store.faults.delay = 2.0
    yield
    store.faults.delay = 0.0


@contextmanager
def refusing(store: QdrantDouble) -> Iterator[None]:
    store.faults.responses = [(503, {})] * 20
    yield


@contextmanager
def dead(find: Callable[[], list]) -> Iterator[None]:
    kill(find())
    yield


def test_a_run_survives_whatever_breaks_and_its_books_agree(folder: Path, store: QdrantDouble) -> None:
    chance = random.Random(FAULTS)
    run = Run(
        folder,
        "trainer.total_training_steps=10000",
        "comprl.environments.isolation=process",
        "comprl.environments.step_timeout=5",
        "comprl.environments.reset_timeout=40",
        f"comprl.bank.url={store.url}",
    )
    metrics = folder / "run/metrics.jsonl"

    def finished() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def one(find: Callable[[Run], list[Any]]) -> list[Any]:
        found: list[Any] = []
        run.wait_until(lambda: found.extend(find(run)[:1]) or found)
        return found

    kinds: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "environment killed": lambda: dead(lambda: one(environments)),
        "environment hung": lambda: stopped(one(environments)),
        "manager killed": lambda: dead(lambda: one(manager)),
        "manager hung": lambda: stopped(one(manager)),
        "store away": lambda: away(store),
        "store slow": lambda: slow(store),
        "store refusing": lambda: refusing(store),
    }
    made: list[str] = []
    try:
        run.wait_until(lambda: finished() >= 1)
        while len(made) < FAULTS:
            time.sleep(chance.uniform(0, 10))
            step, kind = finished(), chance.choice(list(kinds))
            made.append(f"{kind} in step {step + 1}")
            with kinds[kind]():
                time.sleep(chance.uniform(1, LONGEST))
            run.wait_until(lambda before=step: finished() > before)
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(timeout=600)
    finally:
        run.process.kill()
        print(*made, sep="\n")
    assert run.processes() == []
    measured = read_steps(folder / "run")
    assert [step["step"] for step in measured] == list(range(1, last_step(folder / "run") + 1))
    assert len(measured) > FAULTS
    assert measured[-1]["comprl/manager_restarts"] == sum("manager killed" in fault for fault in made)
    assert problems(folder / "run") == []
