"""A curve in one line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*%#"
"""For a terminal that has no other characters."""


class Sparkline:
    """Renders values as a line as wide as there is room, at most one character per value."""

    def __init__(self, values: Sequence[float], low: float | None = None, high: float | None = None) -> None:
        """Show ``values``.

        Args:
            values: In order; NaN leaves a gap.
            low: Value of the lowest character; None for the lowest value.
            high: Value of the highest character; None for the highest value.
        """
        finite = [value for value in values if math.isfinite(value)]
        self._values = values
        self._low = min(finite, default=0.0) if low is None else low
        self._high = max(finite, default=1.0) if high is None else high

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render into the width of the cell."""
        yield Text(self.text(options.max_width, _ASCII if options.ascii_only else _BLOCKS), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Ask for a character per value, and accept a few."""
        return Measurement(min(4, options.max_width), min(max(1, len(self._values)), options.max_width))

    def text(self, width: int, characters: str = _BLOCKS) -> str:
        """Return the line: each character is the mean of the values that fall on it."""
        count = min(width, len(self._values))
        edges = [round(place * len(self._values) / count) for place in range(count + 1)] if count > 0 else [0]
        return "".join(self._character(self._values[start:end], characters) for start, end in pairwise(edges))

    def _character(self, values: Sequence[float], characters: str) -> str:
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return " "
        height = self._high - self._low
        share = (sum(finite) / len(finite) - self._low) / height if height > 0 else 0.0
        return characters[max(0, min(len(characters) - 1, int(share * len(characters))))]
