"""A process that computes at idle priority."""

import os
import signal
import time

import psutil
import pytest

from benchmarks.burden import burden


def test_a_burden_computes_at_idle_priority_until_it_is_taken_away() -> None:
    with burden() as process:
        watched = psutil.Process(process.pid)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        used, deadline = watched.cpu_times().user, time.monotonic() + 60  # the machine may be busy
        while watched.cpu_times().user < used + 0.1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert process.returncode == -signal.SIGKILL


def test_a_burden_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="has ended"), burden() as process:
        process.kill()
        process.wait()
    monkeypatch.setattr("benchmarks.burden.sys.executable", "false")
    with pytest.raises(RuntimeError, match="has ended"), burden():
        raise AssertionError("it has begun")
