"""The benchmark of the page says by its exit code whether the target is met. No browser."""

import sys
from contextlib import nullcontext

import pytest

from benchmarks import viewer


@pytest.mark.parametrize("format", [[], ["--json"]])
@pytest.mark.parametrize(("seconds", "code"), [(0.1, None), (2.5, 1)])
def test_a_first_paint_that_comes_too_late_is_exit_code_1(
    format: list[str], seconds: float, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "chromium", nullcontext)
    monkeypatch.setattr(viewer, "measure", lambda tab, file: {"first_paint": seconds})
    monkeypatch.setattr(sys, "argv", ["viewer", "--episodes", "32", "--entries", "5", "--repeats", "1", *format])
    ended = None
    try:
        viewer.main()
    except SystemExit as error:
        ended = error.code
    assert ended == code
