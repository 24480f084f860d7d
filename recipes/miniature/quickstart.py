"""Quickstart: one run of the miniature, and what experience was worth in it.

``python -m recipes.miniature.quickstart [key=value …]``; COMPRL_MINIATURE is the folder of all files.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from recipes.miniature.run import ROOT, set_environment, shared_overrides
from recipes.miniature.settings import SETTINGS

FAMILIES, SEED, STEPS, EVERY = 3, 1, 30, 15


def main(overrides: Sequence[str] | None = None) -> int:
    """Make the tasks, train, and report; an interrupted run is resumed.

    Returns:
        The exit code of the training.
    """
    overrides = sys.argv[1:] if overrides is None else list(overrides)
    output = Path(os.environ.get("COMPRL_MINIATURE", ROOT / "outputs/miniature")).resolve()
    set_environment(output)
    shared = shared_overrides(output / "data", families=FAMILIES, seed=SEED, steps=STEPS, every=EVERY)
    print("Tasks: 288 locked things for training and 96 others for evaluation; what opens one is hidden", flush=True)
    run = output / "quickstart"
    _set_aside(run)
    command = [sys.executable, "-m", "verl_comprl.train", "--config-dir", str(ROOT / "recipes")]
    command += ["--config-name", SETTINGS["plain"].config, *shared, f"trainer.default_local_dir={run}"]
    code = run_until_end([*command, "trainer.experiment_name=quickstart", *overrides])
    if code == 0:
        from recipes.miniature.worth import draw, worth

        print(f"\n{worth(run)}\nFigure: {draw(run, run / 'worth.png')}")
    return code


def run_until_end(command: Sequence[str]) -> int:
    """Run a command and return its exit code; it gets Ctrl-C and SIGTERM, and takes the time that it needs then.

    ``subprocess.call`` kills a command that has not ended a quarter of a second after Ctrl-C.
    """
    # In a session of its own: the terminal's Ctrl-C would reach it, and reach it again from here.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: process.send_signal(number)) for number in signals}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_aside(run: Path) -> None:
    """Rename a run that has finished, so that a new one starts."""
    checkpoint = run / "latest_checkpointed_iteration.txt"
    if checkpoint.exists() and int(checkpoint.read_text()) >= STEPS:
        run.rename(run.with_name(f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}"))


if __name__ == "__main__":
    sys.exit(main())
