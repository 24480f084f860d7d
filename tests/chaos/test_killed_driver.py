"""A run whose driver is killed at random moments goes on from its last checkpoint, again and again.

While it trains and saves, while it starts (which restores the last checkpoint), and while it stops after a signal.
``COMPRL_KILLS=20 pytest -m long tests/chaos/test_killed_driver.py`` kills it 20 times with each of verl's three
trainers, in about half an hour each.
"""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from arm_settings import TRAINERS
from books import counted_ahead, problems
from running import Run, comprl_bank, last_step, read_steps, warm_started, with_tasks

from verl_comprl.record import RunRecord

KILLS = int(os.environ.get("COMPRL_KILLS", "3"))
MOST_SECONDS = {"step": 25.0, "start": 60.0, "stop": 20.0}
"""Each takes less, so that a kill can meet each part of it."""

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(300 * (KILLS + 2))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tasks(tmp_path, warm_started())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_whose_driver_is_killed_again_and_again_loses_no_entry_and_counts_no_episode_twice(
    folder: Path, trainer: str
) -> None:
    moments = random.Random(KILLS)
    log = folder / "run/metrics.jsonl"
    common = [*TRAINERS[trainer], "trainer.save_freq=1"]
    ahead, unlogged = set[str](), set[int]()

    def finished() -> int:
        return len(log.read_text().splitlines()) if log.exists() else 0

    kills = number = 0
    while kills < KILLS:
        run = Run(folder, *common, "trainer.total_training_steps=1000")
        part = [*MOST_SECONDS][number % len(MOST_SECONDS)]
        number += 1
        started = finished()
        try:
            if part != "start":
                run.wait_until(lambda begun=started: finished() > begun + 1)
            if part == "stop":
                run.process.send_signal(signal.SIGTERM)
            run.process.wait(timeout=moments.uniform(0, MOST_SECONDS[part]))
        except subprocess.TimeoutExpired:
            pass
        finally:
            run.process.kill()
        code = run.process.wait()
        assert code in (-signal.SIGKILL, 130), run.text()  # 130: it had stopped before the kill
        kills += code == -signal.SIGKILL
        assert run.processes() == [], "what the driver has started outlives it"
        ahead |= counted_ahead(folder / "run")
        # A kill may come between a step's checkpoint and its line (docs/reliability.md).
        unlogged |= {last_step(folder / "run")} - {step["step"] for step in read_steps(folder / "run")}

    last = last_step(folder / "run") + 2
    run = Run(folder, *common, f"trainer.total_training_steps={last}")
    assert run.process.wait(timeout=600) == 0, run.text()
    steps = [step["step"] for step in read_steps(folder / "run")]
    assert steps == [step for step in range(1, last + 1) if step not in unlogged]
    ahead |= counted_ahead(folder / "run")
    assert problems(folder / "run", ahead if trainer != "sync" else ()) == []

    listed = comprl_bank(folder, "list", "--limit", "0", "--json").stdout
    bank = {json.loads(line)["id"] for line in listed.splitlines()}
    promised, known = entries(folder / "run")
    assert promised, "nothing was written"
    assert promised <= bank <= known


def entries(run: Path) -> tuple[set[str], set[str]]:
    """Return the entries that must be in the bank, and those that may be.

    An episode that waited in the queue at a checkpoint is distilled again by the run that goes on from it: what the
    killed one had written of it is gone, and the last entries count.
    """
    written: dict[str, set[str]] = {}
    known, gone, merged = set[str](), set[str](), set[str]()
    before = None
    for event in RunRecord(run).events():
        if event["event"] == "written":
            if event["episode"] != before:
                written[event["episode"]] = set()
            written[event["episode"]].add(event["entry"])
            known.add(event["entry"])
        elif event["event"] == "merged":
            merged.add(event["entry"])
        elif event["event"] == "removed":
            gone.add(event["entry"])
        before = event.get("episode") if event["event"] == "written" else None
    return set[str]().union(*written.values()) - gone, known | merged
