"""Processes that ignore the signal of a closed terminal, and the process that has started them."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from verl_comprl.platform.signals import out_of_reach_of_terminal, stop_signals

WAIT = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """That of a terminal, whatever the tests were started by."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_what_is_started_meanwhile_survives_a_closed_terminal_and_nothing_else_does() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with out_of_reach_of_terminal():
        kept = subprocess.Popen([sys.executable, "-c", WAIT])
    assert signal.getsignal(signal.SIGHUP) == before
    lost = subprocess.Popen([sys.executable, "-c", WAIT])
    try:
        for process in (kept, lost):
            process.send_signal(signal.SIGHUP)
        assert lost.wait(30) == -signal.SIGHUP and kept.poll() is None
    finally:
        for process in (kept, lost):
            process.kill()
            process.wait()


def test_a_closed_terminal_stops_a_run_unless_it_is_ignored() -> None:
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
