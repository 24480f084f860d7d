"""A death that the main thread does not notice ends the run; the main thread is that of pytest."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.trainer.watchdog.deaths import Deaths
from verl_comprl.trainer.watchdog.ending import Ending, RunHung
from verl_comprl.trainer.watchdog.liveness import ProcessLost

LOST = "TransferQueue has died, so the run cannot go on: killed"
LONG = 60.0
"""Seconds that a test would hang if nothing ended it."""


class Vital:
    """What is watched: dead when ``dead``, unless nothing is watched any more."""

    def __init__(self) -> None:
        self.dead, self.watched = False, True

    def check(self) -> None:
        if self.dead and self.watched:
            raise ProcessLost(LOST)


def test_a_main_thread_that_waits_for_a_dead_process_leaves_with_its_name() -> None:
    vital, ended = Vital(), threading.Event()
    ending = Ending(pytest.fail)
    vital_actors: Any = vital
    deaths = Deaths(vital_actors, ending.end, seconds=0.3)

    def look() -> None:
        while not ended.wait(0.05):
            deaths.look()

    thread = threading.Thread(target=look)
    thread.start()
    started = time.monotonic()
    try:
        with pytest.raises(RunHung, match=LOST) as caught, ending.allowed():
            vital.dead = True
            threading.Event().wait(LONG)
    finally:
        ended.set()
        thread.join()
    assert 0.3 <= time.monotonic() - started < LONG / 2
    assert str(caught.value).endswith("the next start resumes from the latest checkpoint, if there is one")


def test_a_death_that_the_run_notices_by_itself_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reasons, vital = SimpleNamespace(now=100.0), list[str](), Vital()
    monkeypatch.setattr("verl_comprl.trainer.watchdog.deaths.time.monotonic", lambda: clock.now)
    vital_actors: Any = vital
    deaths = Deaths(vital_actors, reasons.append, seconds=30)
    vital.dead = True
    deaths.look()
    clock.now += 29
    deaths.look()
    vital.watched = False
    clock.now += 10
    deaths.look()
    assert reasons == []
    vital.watched = True
    deaths.look()
    assert reasons == [], "it has as much time as the first one"
    clock.now += 30
    deaths.look()
    assert [reason.splitlines()[0] for reason in reasons] == [LOST]
