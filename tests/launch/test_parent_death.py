"""A launcher that is killed after it has passed on the first signal, as torchrun does with one that takes long."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DRIVER = """
import itertools, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from verl_comprl.training import _stop_on_signal

folder = Path(sys.argv[1])
asked, numbers, install = [], itertools.count(1), signal.signal

def install_watched(number, handler):
    def handle(*arguments):
        handler(*arguments)
        (folder / f"handled-{next(numbers)}").touch()
    return install(number, handle if callable(handler) else handler)

signal.signal = install_watched
trainer = SimpleNamespace(request_stop=lambda: asked.append(1))
display = SimpleNamespace(announce=lambda text: (folder / "told").touch())
try:
    with _stop_on_signal(trainer, display):
        (folder / "training").touch()
        while not asked:
            time.sleep(0.02)
        for _ in range(int(sys.argv[2])):  # in steps: a handler runs between two
            time.sleep(0.05)
    (folder / "checkpoint").touch()
except KeyboardInterrupt:
    (folder / "nothing").touch()
"""

LAUNCHER = """
import os, sys, time
from verl_comprl.launch import head
from verl_comprl.launch.node import Node

driver = Node(0, 1, "127.0.0.1", os.environ).start("-c", *sys.argv[1:])
print(driver.pid, flush=True)
head._on_signals(lambda number, _: driver.send_signal(number))
while driver.poll() is None:
    time.sleep(0.02)
"""


def until(*paths: Path) -> str:
    """Wait for one of the files and return its name."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if found := next((path.name for path in paths if path.exists()), None):
            return found
        time.sleep(0.05)
    raise AssertionError(f"none of {paths}")


def launch(folder: Path, waits: int) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", LAUNCHER, DRIVER, str(folder), str(waits)]
    environment = os.environ | {"RAY_TMPDIR": str(folder)}
    launcher = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    driver = int(launcher.stdout.readline())
    until(folder / "training")
    launcher.terminate()
    until(folder / "told")
    return launcher, driver


def test_it_is_not_taken_for_the_users_second_signal(tmp_path: Path) -> None:
    launcher, _ = launch(tmp_path, 40)
    launcher.kill()
    launcher.wait()
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "checkpoint"


def test_the_users_second_signal_stops_at_once_also_after_it(tmp_path: Path) -> None:
    launcher, driver = launch(tmp_path, 2000)
    launcher.kill()
    launcher.wait()
    until(tmp_path / "handled-2")  # the signal by which the kernel tells of the launcher's death
    os.kill(driver, signal.SIGTERM)
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "nothing"


def test_the_users_second_signal_stops_at_once(tmp_path: Path) -> None:
    launcher, _ = launch(tmp_path, 2000)
    launcher.terminate()
    assert until(tmp_path / "checkpoint", tmp_path / "nothing") == "nothing"
    launcher.wait(30)
