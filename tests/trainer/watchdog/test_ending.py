"""A main thread that hangs is ended by the watchdog, wherever it waits; these tests block the one of pytest."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import under_way
from verl_comprl.platform.under_way import doing
from verl_comprl.platform.waiting import call_within
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.stopping import StopRequest
from verl_comprl.trainer.watchdog import watching
from verl_comprl.trainer.watchdog.ending import Ending, RunHung
from verl_comprl.trainer.watchdog.liveness import VitalActors
from verl_comprl.trainer.watchdog.watching import PHASES
from verl_comprl.trainer.watchdog.watching import watching as watched

LONG = 60.0
"""Seconds that a test would hang if nothing ended it."""


class Buffer:
    """verl's replay buffer as far as it waits: one more row at each of the first polls, then none."""

    def __init__(self, rows: int = 0) -> None:
        self.partitions: dict[str, dict[str, Any]] = {"train": {}}
        self.polls, self._rows = 0, rows

    def _wait_for_next_poll(self, partition: str, last: float) -> float:
        time.sleep(0.05)
        self.polls += 1
        if self.polls <= self._rows:
            self.partitions[partition][f"p_{self.polls}_0"] = {}
        return last

    def sample(self) -> None:
        while self.polls < LONG / 0.05:
            self._wait_for_next_poll("train", 0.0)


def make_trainer(fit: Callable[[], Any], buffer: Any = None, *, end_after: float = 0.2) -> Any:
    settings = SimpleNamespace(after=0.1, factor=1, end_after=end_after)
    phases: dict[str, Any] = dict.fromkeys(PHASES, dict) | {"fit": fit}
    return SimpleNamespace(
        comprl=SimpleNamespace(watchdog=settings),
        experience_runtime=NoExperienceRuntime(),
        vital=VitalActors(),
        replay_buffer=buffer or SimpleNamespace(),
        **phases,
    )


class Ticks:
    """A clock by which 0.02 s are between two looks of the watchdog, however late these are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return self.count * 0.02


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(under_way, "_clock", ticks)
    return ticks


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


WAITS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: time.sleep(LONG),
    "lock": lock_twice,
    "event": lambda: threading.Event().wait(LONG),
    "future, as TransferQueue waits": lambda: Future().result(LONG),
    "event loop": lambda: asyncio.run(asyncio.sleep(LONG)),
    "process": lambda: subprocess.run([sys.executable, "-c", f"import time; time.sleep({LONG})"], check=True),
}


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_main_thread_that_hangs_leaves_with_one_error_that_says_what_it_waited_for(wait: Callable[[], Any]) -> None:
    trainer = make_trainer(wait)
    said: list[str] = []
    started, left = time.monotonic(), []
    with pytest.raises(RunHung) as caught, watched(trainer, said.append):
        try:
            trainer.fit()
        finally:
            left.append(True)  # the run's own clean-up
    assert time.monotonic() - started < LONG / 2 and left
    head, *lines = str(caught.value).splitlines()
    assert re.match(r"training hangs: nothing has moved for .*\(comprl\.watchdog\.end_after\)$", head), head
    assert any(line.startswith("  this process: ") for line in lines)
    assert lines[-2:] == [
        "  0 of 0 processes answer",
        "the next start resumes from the latest checkpoint, if there is one",
    ]
    assert isinstance(caught.value.__cause__, KeyboardInterrupt), "the log shows where it hung"
    assert [text for text in said if "so far" in text], "it has been named before"


def test_silent_processes_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "situation", lambda _: iter(["the actor's server 0: does not answer"]))
    trainer = make_trainer(WAITS["event"])
    with pytest.raises(RunHung, match=r"\n  the actor's server 0: does not answer\n"), watched(trainer, lambda _: None):
        trainer.fit()


def test_it_is_ended_though_no_process_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise WaitTimeout("Ray", 5)

    for name in ("situation", "manager_work"):
        monkeypatch.setattr(watching, name, fail)
    trainer = make_trainer(WAITS["event"])
    with pytest.raises(RunHung, match="training hangs"), watched(trainer, lambda _: None):
        trainer.fit()


def test_an_error_while_it_leaves_does_not_hide_the_hang() -> None:
    trainer = make_trainer(WAITS["event"])
    with pytest.raises(RunHung, match="training hangs"), watched(trainer, lambda _: None):
        try:
            trainer.fit()
        finally:
            raise OSError("the metrics backend cannot finish")


def test_what_its_own_limit_ends_is_left_to_it(ticks: Ticks) -> None:
    trainer = make_trainer(lambda: call_within(lambda: wait_until(lambda: ticks.count > 60), 60, "a long save"))
    said: list[str] = []
    with watched(trainer, said.append):
        trainer.fit()
    assert [text for text in said if text.startswith("watchdog: training > waiting for a long save")]


def test_another_thread_that_hangs_does_not_end_the_run() -> None:
    gate = threading.Event()

    def learn() -> None:
        with doing("update of the extractor"):
            gate.wait(LONG)

    thread = threading.Thread(target=learn, daemon=True)
    said: list[str] = []
    with watched(make_trainer(dict), said.append):
        thread.start()
        time.sleep(1.0)
        wait_until(lambda: said)
    gate.set()
    assert said and said[0].startswith("watchdog: update of the extractor")


def test_rollouts_that_end_one_by_one_are_no_hang_and_the_last_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(rows=30)  # one every 50 ms for a second and a half, then none
    monkeypatch.setattr(under_way, "_clock", lambda: buffer.polls * 0.05)
    StopRequest().interrupts(buffer)
    trainer = make_trainer(lambda: buffer.sample(), buffer, end_after=0.5)
    with pytest.raises(RunHung, match="training > rollouts hangs"), watched(trainer, lambda _: None):
        trainer.fit()
    assert buffer.polls >= 30 + 0.5 / 0.05


def test_0_never_ends_a_run() -> None:
    trainer = make_trainer(lambda: time.sleep(1.0), end_after=0)
    with watched(trainer, lambda _: None):
        trainer.fit()


def test_an_end_that_comes_too_late_is_none() -> None:
    ending = Ending(pytest.fail)
    with ending.allowed():
        pass
    ending.end("too late")


def test_an_end_that_comes_while_the_block_is_left_does_not_wait_for_it_to_be_left_again() -> None:
    ending = Ending(pytest.fail)

    class Lock:
        """The watchdog's thread has it, and its signal comes."""

        def __enter__(self) -> None:
            ending._reason = "training hangs"
            signal.raise_signal(signal.SIGUSR2)

        def __exit__(self, *_: object) -> None:
            raise AssertionError

    ending._lock = cast(Any, Lock())
    with pytest.raises(RunHung, match="training hangs"), ending.allowed():
        pass
    assert ending._left.is_set()  # or the watchdog would kill the process some minutes later


DEAF = """
import signal, subprocess, sys, threading, time
from verl_comprl.trainer.watchdog import ending as module
from verl_comprl.trainer.watchdog.ending import Ending

module.TELL_SECONDS = 1.0

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # as a call into a library that does not return
ending = Ending(lambda text: print("announced", text), seconds=0.5)
threading.Timer(0.5, ending.end, ["training hangs"]).start()
with ending.allowed():
    time.sleep(600)
"""


def test_a_main_thread_that_cannot_be_woken_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    pid, *said = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert "announced error: training hangs" in said and "all of its processes have been killed" in said[-1]
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("telling", ["1 / 0", "time.sleep(600)"])
def test_it_is_killed_though_nobody_can_be_told(tmp_path: Path, telling: str) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(DEAF.replace('print("announced", text)', telling))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    pid = int(done.stdout.splitlines()[0])
    assert done.returncode == 1, done.stderr
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
