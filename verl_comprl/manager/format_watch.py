"""Warns of an extractor that does not know the format of its answers: a run would show only that nothing happens."""

import logging

logger = logging.getLogger(__name__)

FIRST_ANSWERS = 32
"""Answers after which an extractor that has written no readable one is taken not to know the format."""


class FormatWatch:
    """Watches whether any of an extractor's first answers can be parsed; logs a warning, once, if none can."""

    def __init__(self) -> None:
        """Wait for the first answer."""
        self._unreadable = 0
        self._decided = False

    def note(self, *, format_ok: bool) -> None:
        """Take notice of one answer."""
        if self._decided:
            return
        self._unreadable += not format_ok
        self._decided = format_ok or self._unreadable == FIRST_ANSWERS
        if not format_ok and self._decided:
            logger.warning(
                "none of the extractor's first %d answers could be parsed; teach the model the format first "
                "(docs/models.md)",
                FIRST_ANSWERS,
            )
