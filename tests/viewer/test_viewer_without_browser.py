"""Without a Chromium the tests of the page are skipped on a developer's machine, and fail in continuous integration."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from visits import no_browser

ROOT = Path(__file__).parents[2]


def outcome(variables: Mapping[str, str]) -> str:
    """What becomes of a test; an outcome that is let out of here would be that of the test that asks."""
    try:
        no_browser(variables)
    except pytest.skip.Exception:
        return "skipped"
    except pytest.fail.Exception:
        return "failed"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "skipped"),
        ({"CI": "false"}, "skipped"),
        ({"CI": "true"}, "failed"),
    ],
)
def test_it_is_missed_in_ci_alone(variables: dict[str, str], expected: str) -> None:
    assert outcome(variables) == expected


def test_a_test_of_the_page_fails_where_ci_has_none() -> None:
    test = "tests/viewer/test_viewer_browser.py::test_leaving_a_page_for_another_is_no_error"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "CI": "true", "PATH": "/nowhere"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "no Chromium here" in done.stdout, done.stdout + done.stderr
