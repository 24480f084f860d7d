"""Ctrl-C and SIGTERM in a process that trains: the first asks it to stop, the second of the same kind ends it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_parent_death import DRIVER, until

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def signalled(folder: Path, first: signal.Signals, *, waits: int) -> subprocess.Popen[bytes]:
    """A process that has got a signal while it trained, and writes its checkpoint ``waits`` moments later."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), str(waits)])
    until(folder / "training")
    driver.send_signal(first)
    until(folder / "told")
    return driver


@pytest.mark.parametrize("first", SIGNALS)
def test_the_first_signal_asks_for_a_checkpoint(tmp_path: Path, first: signal.Signals) -> None:
    driver = signalled(tmp_path, first, waits=1)
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "checkpoint"
    driver.wait(30)


@pytest.mark.parametrize("kind", SIGNALS)
def test_the_second_one_stops_at_once(tmp_path: Path, kind: signal.Signals) -> None:
    driver = signalled(tmp_path, kind, waits=2000)
    driver.send_signal(kind)
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "nothing"
    driver.wait(30)


@pytest.mark.parametrize(("first", "second"), [SIGNALS, SIGNALS[::-1]])
def test_one_of_the_other_kind_does_not(tmp_path: Path, first: signal.Signals, second: signal.Signals) -> None:
    driver = signalled(tmp_path, first, waits=20)
    driver.send_signal(second)
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "checkpoint"
    driver.wait(30)
