"""Sends what verl and other libraries print to a log file, except verl's metrics lines."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO


class _Log(io.TextIOBase):
    """Log file whose disk may be full: a line that is lost costs the line, and not the run that prints it."""

    def __init__(self, file: TextIO, clean: Callable[[str], str]) -> None:
        self._file, self._clean = file, clean

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._file.write(self._clean(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._file.encoding


class _Splitter(io.TextIOBase):
    """Standard output that passes verl's metrics lines to ``show`` and writes everything else to ``log``."""

    def __init__(self, log: TextIO, show: Callable[[str], None]) -> None:
        self._log, self._show, self._line = log, show, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            # Only trainer.logger=[console] makes verl print such lines.
            if line.startswith("step:"):
                self._show(line)
            else:
                print(line, file=self._log)
        return len(text)


@contextmanager
def redirect_verl_output(file: Path, show: Callable[[str], None], clean: Callable[[str], str]) -> Iterator[None]:
    """Append standard output and standard error to ``file``.

    Args:
        file: The log file; its folder is created.
        show: Gets each of verl's metrics lines (``step:…``).
        clean: Returns a text as it may be logged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Never closed: loggers that were set up meanwhile keep it and may write when the process ends.
    log: Any = _Log(file.open("a", encoding="utf-8", errors="backslashreplace", buffering=1), clean)
    with redirect_stdout(_Splitter(log, show)), redirect_stderr(log):
        yield
