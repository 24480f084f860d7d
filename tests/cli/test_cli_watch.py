"""``comprl watch`` in a pipe and on a terminal of its own."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from run_folders import append, halves, write_run

from verl_comprl.cli import main

STEPS = {step: halves(0.5, 0.25, bank__size=3.0) for step in range(1, 4)}


def test_a_pipe_gets_the_page_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(tmp_path / "run", STEPS))
    for arguments in (["watch", folder], ["watch", folder, "--once"]):
        assert main.main(arguments) == 0
        shown = capsys.readouterr().out
        assert shown.count("step 3/60") == 1 and "\x1b" not in shown and "q quits" not in shown


def test_wrong_usage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["watch", str(tmp_path)]) == 2
    run = str(write_run(tmp_path / "run", STEPS))
    for interval in ("0", "nan", "inf"):
        assert main.main(["watch", run, "--interval", interval]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"comprl watch: {tmp_path} is not the folder of a run: it has no config.yaml"
    assert others == [
        f"comprl watch: --interval {interval} must be a number of seconds above 0" for interval in ("0", "nan", "inf")
    ]


def test_a_pipe_that_has_nothing_but_ascii_gets_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "Läufe" / ("run" * 40), STEPS)
    command = [sys.executable, "-m", "verl_comprl.cli.main", "watch", str(folder)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    page = done.stdout.decode("ascii")
    assert page.startswith("complementary - running") and "/L?ufe/" in page and "5.0 s per step - about" in page


def read_until(terminal: int, text: bytes, limit: float = 120.0) -> bytes:
    seen, end = b"", time.monotonic() + limit
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:  # closed by the other side
                break
    return seen


def take_terminal() -> None:
    """Make it the terminal of the session, which turns Ctrl-C into a signal; a job in the background ignores that."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_terminal_shows_new_steps_until_a_key_quits(tmp_path: Path, key: bytes) -> None:
    folder = write_run(tmp_path / "run", STEPS)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "verl_comprl.cli.main", "watch", str(folder), "--interval", "0.1"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    try:
        assert b"step 3/60" in read_until(ours, b"step 3/60")
        append(folder, {4: STEPS[3]})
        assert b"step 4/60" in read_until(ours, b"step 4/60")
        os.write(ours, key)
        assert b"\x1b[?1049l" in read_until(ours, b"\x1b[?1049l")  # the terminal's own screen is back
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
