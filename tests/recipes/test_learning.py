"""A run of the miniature, long enough for both models to learn: it fails when learning breaks.

The quickstart's run: three families and 30 steps.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipes.miniature.rows import read_rows

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("miniature")
    options = ["--arms", "complementary", "--seeds", "7", "--steps", "30"]
    command = [sys.executable, "-m", "recipes.miniature.run", *options, "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert (output / "tables.md").exists() and (output / "success.svg").exists() and (output / "entries.png").exists()
    (row,) = read_rows(output / "runs")
    return row


def test_success_with_experience_rises_above_the_start_and_above_success_without_it(row: dict[str, Any]) -> None:
    start, end = row["evaluations"]["0"], row["evaluations"]["30"]
    assert end["with"] > start["without"] + 0.15
    assert end["with"] > end["without"] + 0.1


def test_the_extractor_is_rewarded_more(row: dict[str, Any]) -> None:
    assert row["journal"]["30"]["extractor_reward"] > row["journal"]["15"]["extractor_reward"] + 0.1


def test_late_entries_are_better_than_early_ones(row: dict[str, Any]) -> None:
    early, late = row["journal"]["15"], row["journal"]["30"]
    assert late["right"] > early["right"] + 0.1
    assert late["kind_family"] > early["kind_family"]
    assert late["unreadable"] < 0.1
