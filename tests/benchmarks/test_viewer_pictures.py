"""Pictures of the page are taken in a window of the width that is asked for. No browser."""

import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from benchmarks import viewer_pictures
from benchmarks.chromium import Tab


@pytest.mark.parametrize(("options", "width"), [([], 1280), (["--width", "400"], 400)])
def test_the_window_is_as_wide_as_asked_for(
    options: list[str], width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tab, taken = MagicMock(spec=Tab), []

    def take(tab: MagicMock, *_: object) -> None:
        taken.append(tab.size.call_args.args[0])

    monkeypatch.setattr(viewer_pictures, "chromium", contextmanager(lambda: iter([tab])))
    monkeypatch.setattr(viewer_pictures, "write_view", lambda runs, page: None)
    monkeypatch.setattr(viewer_pictures, "take", take)
    command = ["viewer_pictures", "--runs", str(tmp_path), "--output", str(tmp_path), *options]
    monkeypatch.setattr(sys, "argv", command)
    viewer_pictures.main()
    assert taken == [width] * 6
