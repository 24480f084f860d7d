"""The program of README's first command, really trained, with fewer steps than its thirty."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 4
"""The first two write entries only."""


def program() -> list[str]:
    """What ``make quickstart`` starts once the environment is there."""
    (found,) = re.findall(r"^quickstart:.*\n\t@PATH=\S+ python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [sys.executable, *shlex.split(found)]


@pytest.mark.run
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_trains_and_says_what_experience_was_worth(tmp_path: Path) -> None:
    steps = [f"trainer.{name}={STEPS}" for name in ("total_training_steps", "test_freq", "save_freq")]
    environment = os.environ | {"COMPRL_MINIATURE": str(tmp_path)}
    done = subprocess.run([*program(), *steps], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    run = tmp_path / "quickstart"
    first, last = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
    assert (first["step"], last["step"]) == (0, STEPS)
    before = first["comprl/eval/success_without"]
    after, guided = (last[f"comprl/eval/success_{mode}"] for mode in ("without", "with"))
    said = [" ".join(line.split()) for line in done.stdout.splitlines()[-6:]]
    beginnings = [
        "What experience was worth: success in 192 episodes ",
        f"before training {100 * before:.0f} % (",
        f"after {STEPS} steps, without it {100 * after:.0f} % (",
        f"after {STEPS} steps, with it {100 * guided:.0f} % (",
        'The entry with most successes: "',
        f"Figure: {run / 'worth.png'}",
    ]
    assert [line for line, beginning in zip(said, beginnings, strict=True) if not line.startswith(beginning)] == []
    assert said[3].endswith(f" {100 * (guided - after):+.0f} points")
    assert (run / "worth.png").stat().st_size > 5000
