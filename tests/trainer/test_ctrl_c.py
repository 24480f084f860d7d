"""Ctrl-C in a terminal, which reaches every process of a run: while it starts, once in a step, and twice; its end."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import Run, last_step, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]

END_SECONDS = 240
NOW_SECONDS = 60


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[[], Run]]:
    started: list[Run] = []

    def start() -> Run:
        started.append(Run(folder, f"trainer.default_local_dir={folder / 'ctrl_c'}", in_terminal=True))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()


def ended(run: Run) -> str:
    """Wait for its end, check that nothing is left, and return what it has printed."""
    assert run.process.wait(timeout=END_SECONDS) == 130, run.text()
    assert run.leftovers() == [], run.text()
    assert "Traceback" not in run.text()
    return run.text()


def test_ctrl_c_once_saves_twice_does_not_and_neither_leaves_anything(folder: Path, run: Callable[[], Run]) -> None:
    metrics = folder / "ctrl_c/metrics.jsonl"

    def steps() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    starting = run()
    starting.wait_until(lambda: len(starting.listening()) > 3)  # Ray is there, models are being loaded
    starting.press_ctrl_c()
    ended(starting)
    assert steps() == 0

    once = run()
    once.wait_until(lambda: steps() > 0)
    once.press_ctrl_c()
    output, saved = ended(once), last_step(folder / "ctrl_c")
    assert f"stopped after step {saved}; checkpoint in" in output
    assert saved == steps()

    hung_up = run()
    hung_up.wait_until(lambda: steps() > saved)
    hung_up.hang_up()
    output, saved = ended(hung_up), last_step(folder / "ctrl_c")
    assert f"stopped after step {saved}; checkpoint in" in output and saved == steps()

    twice = run()
    twice.wait_until(lambda: steps() > saved)
    twice.press_ctrl_c()
    # On a busy machine both would be one signal, and on a quiet one the run is over in less than a second.
    twice.wait_until(lambda: "stopping as soon as" in twice.text(), pause=0.02)
    twice.press_ctrl_c()
    at = time.monotonic()
    assert "interrupted; nothing was saved since the last checkpoint" in ended(twice)
    assert time.monotonic() - at < NOW_SECONDS
    assert last_step(folder / "ctrl_c") == saved
    assert [line["step"] for line in read_steps(folder / "ctrl_c")][: saved + 1] == list(range(1, saved + 2))
