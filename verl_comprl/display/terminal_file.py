"""Standard output of a run, whose terminal may take no more: Ctrl-S, a pager that nobody scrolls, a stalled connection.

Lines are lost then, and not the run: whoever prints waits a moment only.
"""

import os
import select
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TextIO

from verl_comprl.display.lasting_file import LastingFile

PATIENCE = 2.0
"""Seconds that a text may take; until the terminal has caught up, those after it are not waited for."""

MOST_WAITING = 1000
"""Texts that wait for the terminal, above which new ones are lost."""


class TerminalFile(LastingFile):
    """Writes in a thread of its own, which alone can be kept by the terminal."""

    def __init__(self, file: TextIO) -> None:
        """Write to ``file``, after what it holds already."""
        super().__init__(file)
        super().flush()
        self._waiting: SimpleQueue[tuple[str, threading.Event]] = SimpleQueue()
        self._is_stuck = False
        threading.Thread(target=self._write_all, name="terminal", daemon=True).start()

    def write(self, text: str) -> int:
        """Write ``text`` as far as the terminal takes it; returns its length in any case."""
        if self._waiting.qsize() < MOST_WAITING:
            written = threading.Event()
            self._waiting.put((text, written))
            if not written.wait(0.0 if self._is_stuck else PATIENCE):
                self._is_stuck = True
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _write_all(self) -> None:
        while True:
            text, written = self._waiting.get()
            with suppress(OSError, ValueError):  # it is gone, or closed
                self._write_through(text)
            if self._waiting.empty():
                self._is_stuck = False
            written.set()

    def _write_through(self, text: str) -> None:
        try:
            descriptor = self._file.fileno()
        except OSError:  # a text in memory
            self._file.write(text)
            return
        # Not by the file, whose lock Python wants when it exits: it would abort if the terminal keeps this thread.
        data = text.encode(self._file.encoding or "utf-8", errors="replace")
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # whoever started the run, or is in the same pipe, has made it non-blocking
                select.select([], [descriptor], [])
