"""Completions that the shell gets, and the code that makes it ask for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "verl_comprl.cli.main"]

ENDS = ("", "_ratio")


def completions(line: str, tmp_path: Path) -> list[str]:
    """Ask as the shell does: the line so far in the environment, the answers in a file."""
    answers = tmp_path / "answers"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run(PROGRAM, env=os.environ | variables, timeout=60, check=True)
    return [answer.strip() for answer in answers.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("comprl d", {"data", "doctor"}),
        ("comprl bank se", {"search", "serve"}),
        ("comprl bank list --sort succ", {"success_rate", "successes"}),
        ("comprl data mini", {"minihack"}),
        ("comprl env play so", {"sokoban"}),
        ("comprl train arm=no", {"no_merge", "no_search_and_ask"}),
        ("comprl train comprl.merge.e", {"comprl.merge.every="}),
        ("comprl train trainer.total_t", {"trainer.total_training_steps="}),
        ("comprl train extractor.actor.optim.lr_w", {f"extractor.actor.optim.lr_warmup_steps{end}=" for end in ENDS}),
        ("comprl train extractor.rollout.prompt_l", {"extractor.rollout.prompt_length="}),
    ],
)
def test_names_are_completed(line: str, expected: set[str], tmp_path: Path) -> None:
    found = {answer.removeprefix("arm=") for answer in completions(line, tmp_path)}
    assert found == expected


def test_the_shells_code_is_valid_and_registers_the_command() -> None:
    code = subprocess.run([*PROGRAM, "completion", "bash"], capture_output=True, text=True, timeout=60, check=True)
    check = f"{code.stdout}\ncomplete -p comprl"
    shown = subprocess.run(["bash", "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.endswith("comprl\n") and "-F" in shown.stdout
