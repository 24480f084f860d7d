"""Lines about long waits before a run has begun."""

import threading
import time

import pytest

from verl_comprl.display import long_waits
from verl_comprl.display.long_waits import said_when_long


def test_a_long_wait_is_said_again_and_again_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(long_waits, "duration", lambda seconds: f"{seconds:.1f} s")
    said: list[tuple[str, float]] = []
    third = threading.Event()
    began = time.monotonic()

    def tell(line: str) -> None:
        said.append((line, time.monotonic() - began))
        if len(said) == 3:
            third.set()

    with pytest.raises(KeyError), said_when_long("connecting to Ray", tell):
        assert third.wait(30)
        raise KeyError  # however the wait ends
    count = len(said)
    time.sleep(1.7)  # the fourth would come after 1.6 s
    assert len(said) == count
    for (line, seconds), least in zip(said, (0.2, 0.4, 0.8), strict=False):
        assert line == f"connecting to Ray: {least} s so far" and seconds >= least


def test_a_short_wait_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "FIRST_SECONDS", 3.0)
    said: list[str] = []
    with said_when_long("connecting to Ray", said.append):
        pass
    time.sleep(3.2)
    assert said == []


def test_the_first_line_comes_after_ten_seconds() -> None:
    assert long_waits.FIRST_SECONDS == 10
