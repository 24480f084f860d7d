"""A terminal that takes no more, takes some again, or does not know a character."""

import io
import os
import subprocess
import sys
import time
from typing import TextIO

import pytest

from verl_comprl.display import terminal_file
from verl_comprl.display.terminal_file import TerminalFile


@pytest.fixture
def pipe(full_pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> tuple[int, TextIO]:
    """Both ends of a full pipe, for which nobody waits long."""
    monkeypatch.setattr(terminal_file, "PATIENCE", 0.2)
    return full_pipe


def read_until(descriptor: int, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += os.read(descriptor, 65536)
    return found


@pytest.mark.parametrize("is_blocking", [True, False])
def test_lines_come_in_order_once_a_full_terminal_takes_some_again(pipe: tuple[int, TextIO], is_blocking: bool) -> None:
    reading, file = pipe
    os.set_blocking(file.fileno(), is_blocking)
    terminal = TerminalFile(file)
    began = time.monotonic()
    assert [terminal.write(f"line {number} …\n") for number in range(100)] == [9] * 10 + [10] * 90
    assert time.monotonic() - began < 10  # only the first one was waited for
    lines = "".join(f"line {number} …\n" for number in range(100))
    assert read_until(reading, "line 99 …\n".encode()).lstrip(b"x") == lines.encode()
    terminal.write("end\n")
    assert read_until(reading, b"end\n") == b"end\n"


def test_a_text_that_is_larger_than_a_non_blocking_pipe_comes_whole(pipe: tuple[int, TextIO]) -> None:
    reading, file = pipe
    os.set_blocking(file.fileno(), False)
    text = "".join(f"line {number}\n" for number in range(50_000)) + "end\n"
    TerminalFile(file).write(text)
    assert read_until(reading, b"end\n").lstrip(b"x") == text.encode()


def test_what_a_terminal_does_not_take_is_lost_in_the_end(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_file, "MOST_WAITING", 3)
    reading, file = pipe
    terminal = TerminalFile(file)
    for number in range(10):  # the first one is being written
        terminal.write(f"{number}\n")
    assert read_until(reading, b"3\n").lstrip(b"x") == b"0\n1\n2\n3\n"
    terminal.write("10\n")
    assert read_until(reading, b"10\n") == b"10\n"


def test_a_terminal_that_is_gone_is_no_error(pipe: tuple[int, TextIO]) -> None:
    reading, file = pipe
    terminal = TerminalFile(file)
    os.close(reading)
    began = time.monotonic()
    assert [terminal.write("one"), terminal.write("two")] == [3, 3]
    assert terminal._waiting.empty() and not terminal._is_stuck and time.monotonic() - began < 60


def test_a_text_follows_what_the_file_holds_already(pipe: tuple[int, TextIO]) -> None:
    reading, file = pipe
    os.read(reading, 65536)
    file.write("before, ")
    TerminalFile(file).write("after\n")
    assert read_until(reading, b"after\n").lstrip(b"x") == b"before, after\n"


def test_characters_that_a_terminal_does_not_know_are_replaced() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="ascii") as file:
        TerminalFile(file).write("starting … now\n")
        assert os.read(reading, 100) == b"starting ? now\n"
    os.close(reading)


def test_a_text_in_memory_has_no_descriptor() -> None:
    file = io.StringIO()
    terminal = TerminalFile(file)
    terminal.write("a …")
    terminal.flush()
    assert file.getvalue() == "a …"


def test_lines_of_others_stay_between_ours() -> None:
    """With COMPRL_VERBOSE, verl prints to the same pipe; Python holds that back unless PYTHONUNBUFFERED is set."""
    program = """
from verl_comprl.display.terminal import Display
print("one")
display = Display()
display.note("two")
print("three")
display.note("four")
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["one", "two", "three", "four"]
