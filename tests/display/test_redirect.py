"""Output of libraries goes to a file, metrics lines of verl to the terminal."""

import logging
import sys
import time
from pathlib import Path

import pytest

from verl_comprl.display.redirect import redirect_verl_output


def test_only_metrics_lines_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, shown = tmp_path / "run" / "train.log", []
    with redirect_verl_output(log, shown.append, str):
        print("Training Progress")
        print("step:1 - actor/loss:", end="")
        print("0.5\nsteps to go")
        print("a warning", file=sys.stderr)
    assert shown == ["step:1 - actor/loss:0.5"]
    assert log.read_text() == "Training Progress\nsteps to go\na warning\n"
    assert capsys.readouterr() == ("", "")


def test_a_bar_without_line_ends_takes_no_longer_for_each_of_its_states(tmp_path: Path) -> None:
    log, state = tmp_path / "train.log", "\r" + "#" * 99
    begin = time.process_time()
    with redirect_verl_output(log, print, str):
        for _ in range(20_000):
            sys.stdout.write(state)
        print()
    assert time.process_time() - begin < 2  # nine seconds if each copies what there is
    assert len(log.read_bytes()) == 2_000_001


def test_a_second_run_appends(tmp_path: Path) -> None:
    for number in (1, 2):
        with redirect_verl_output(tmp_path / "train.log", print, str):
            print(f"run {number}")
    assert (tmp_path / "train.log").read_text() == "run 1\nrun 2\n"


def test_a_logger_that_was_set_up_meanwhile_can_write_at_exit(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with redirect_verl_output(log, print, str):
        handler = logging.StreamHandler()
    handler.handle(logging.makeLogRecord({"msg": "goodbye"}))
    assert log.read_text() == "goodbye\n"


def test_a_full_disk_costs_lines_and_not_who_prints_them(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.symlink_to("/dev/full")
    with redirect_verl_output(log, print, str):
        for line in range(3):
            print(f"line {line}")
            print("a warning", file=sys.stderr, flush=True)


def test_what_may_not_be_logged_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with redirect_verl_output(log, print, lambda text: text.replace("secret", "***")):
        print("a secret")
        print("another secret, \udcff", file=sys.stderr)
    assert log.read_text() == "a ***\nanother ***, \\udcff\n"
