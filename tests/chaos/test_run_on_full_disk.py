"""A run whose disk is full for some steps: it trains on, saves when there is room again, and can be continued."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from books import problems
from running import Run, last_step, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

SIZE = 800
"""MiB: what a bank in files needs free (256), and room for the files of the run."""
FULL_STEPS = 4


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """The folder of the run, with a file system of its own."""
    place = folder / "run"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path) -> None:
    """Leave no byte of a disk."""
    with file.open("wb", buffering=0) as ballast:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    ballast.write(os.urandom(size))


def test_a_run_on_a_disk_that_is_full_for_some_steps_loses_lines_and_checkpoints_only(
    folder: Path, small_disk: Path
) -> None:
    common = ("trainer.save_freq=1", "trainer.logger=[console]", "comprl.warmup_steps=0")
    run = Run(folder, *common, "trainer.total_training_steps=1000")
    ballast = small_disk / "ballast"

    def printed() -> int:
        return max(map(int, re.findall(r"^step (\d+)", run.text(), re.MULTILINE)), default=0)

    def is_saved(step: int) -> bool:
        return (small_disk / "latest_checkpointed_iteration.txt").exists() and last_step(small_disk) >= step

    try:
        run.wait_until(lambda: is_saved(2))
        fill(ballast)
        full_from = printed()
        run.wait_until(lambda: printed() >= full_from + FULL_STEPS)
        assert not is_saved(full_from + 2), "the disk was not full"
        ballast.unlink()
        room_from = printed()
        run.wait_until(lambda: is_saved(room_from + 2))
        run.process.send_signal(signal.SIGTERM)
        code = run.process.wait(timeout=600)
    finally:
        run.process.kill()
    assert code == 130, run.text()
    assert run.leftovers() == []
    last = last_step(small_disk)
    again = Run(folder, *common, f"trainer.total_training_steps={last + 1}")
    assert again.process.wait(timeout=600) == 0, again.text()

    steps = {step["step"]: step for step in read_steps(small_disk)}
    missing = {*range(1, last + 2)} - {*steps}
    assert missing <= {*range(full_from, room_from + 2)} and len(missing) >= FULL_STEPS - 1
    assert steps[last]["comprl/saves_failed"] >= FULL_STEPS - 1
    assert steps[last]["comprl/bank/away_seconds"] > 0
    assert {steps[last][f"comprl/queue/{name}"] for name in ("retried", "dead", "dropped")} == {0}
    lost = {name: steps[last][f"comprl/record/{name}_lost"] for name in ("episodes", "calls", "events")}
    assert min(lost.values()) > 0
    # What the disk did not take is missing in the books, and nothing is there twice or has vanished from the queue.
    unexplained = [each for each in problems(small_disk) if not re.search("not on record$|, its events ", each)]
    assert unexplained == []
