"""Sends what verl and other libraries print to a log file, except verl's metrics lines."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from verl_comprl.display.lasting_file import LastingFile


class _Log(LastingFile):
    """Log file that is written without secrets."""

    def __init__(self, file: TextIO, clean: Callable[[str], str]) -> None:
        super().__init__(file)
        self._clean = clean

    def write(self, text: str) -> int:
        super().write(self._clean(text))
        return len(text)


class _Splitter(io.TextIOBase):
    """Standard output that passes verl's metrics lines to ``show`` and writes everything else to ``log``."""

    def __init__(self, log: TextIO, show: Callable[[str], None]) -> None:
        self._log, self._show = log, show
        self._begun: list[str] = []
        """Pieces of a line; a bar that redraws itself ends none, and to join them at each takes quadratic time."""

    def write(self, text: str) -> int:
        *lines, rest = text.split("\n")
        if lines:
            lines[0], self._begun = "".join((*self._begun, lines[0])), []
        self._begun.append(rest)
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
