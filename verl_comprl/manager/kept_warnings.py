"""Log handler that keeps the manager's warnings for the trainer, which writes them to ``train.log``.

The manager is a Ray actor: without this its log is a file in Ray's session folder, on whatever node it runs.
"""

import logging
from collections import deque

MAX_KEPT = 100
"""Warnings are logged once per kind; the bound is for code that does not do so."""


class KeptWarnings(logging.Handler):
    """Keeps what the package logs as a warning or worse, tracebacks included, until it is taken."""

    def __init__(self) -> None:
        """Listen to the loggers of the package in this process."""
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=MAX_KEPT)
        package = logging.getLogger("verl_comprl")
        # verl sets the root logger to VERL_LOGGING_LEVEL, which is ERROR in a run that is not verbose.
        package.setLevel(logging.WARNING)
        package.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self._kept.append(f"{record.name}: {self.format(record)}")

    def take(self) -> list[str]:
        """Return what was kept since the last call."""
        taken = list(self._kept)
        self._kept.clear()
        return taken
