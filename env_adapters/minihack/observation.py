"""The game screen as text.

Owns the crop around the agent, the names in the legend and the lines below. Takes plain arrays and needs no engine.
"""

from typing import Any

import numpy as np

RADIUS = 4
"""Cells to each side of the agent: a 9x9 crop."""

AGENT = "@"
GOAL = ">"
UNSEEN = "~"
"""Stands for a blank, which would not survive as a column of its own; NetHack draws no cell with it here."""

OPEN_DOOR = "'"
"""The game draws an open door as - or |, which are walls too."""

MONSTER_MARK = "(monster)"

_RENAMED = {
    "dark part of a room": "floor",
    "floor of a room": "floor",
    "staircase down": "staircase down (goal)",
    "": "unseen or rock",
}
_ARTICLES = ("a ", "an ", "the ")


def render(
    chars: np.ndarray,
    descriptions: np.ndarray,
    monsters: np.ndarray,
    position: tuple[int, int],
    message: str,
    hit_points: tuple[int, int],
) -> str:
    """Write the screen as text.

    Args:
        chars: Symbol codes of the level, shape (rows, columns).
        descriptions: Zero-terminated names of the cells, shape (rows, columns, length).
        monsters: Which cells show a monster, the agent included, boolean, shape (rows, columns).
        position: Column and row of the agent.
        message: The game's message, perhaps empty.
        hit_points: Current and maximum.

    Returns:
        The crop with symbols separated by spaces, the legend, the message and the hit points.
    """
    column, row = position
    lines: list[str] = []
    names: set[tuple[str, str]] = set()
    for y in range(row - RADIUS, row + RADIUS + 1):
        symbols: list[str] = []
        for x in range(column - RADIUS, column + RADIUS + 1):
            symbol, name = UNSEEN, ""
            if (x, y) == position:
                symbol, name = AGENT, "you"
            elif 0 <= y < chars.shape[0] and 0 <= x < chars.shape[1] and chars[y, x] not in (0, ord(" ")):
                symbol, name = chr(chars[y, x]), decode(descriptions[y, x])
                if name == "open door":
                    symbol = OPEN_DOOR
                if monsters[y, x]:
                    name = f"{name} {MONSTER_MARK}"
            symbols.append(symbol)
            names.add((symbol, name))
        lines.append(" ".join(symbols))
    current, maximum = hit_points
    return "\n".join(
        [*lines, f"Legend: {_legend(names)}", f"Message: {message or '(none)'}", f"Hit points: {current}/{maximum}"]
    )


def decode(text: Any) -> str:
    """Return the zero-terminated text in a row of codes, on one line."""
    return " ".join(bytes(text).partition(b"\0")[0].decode("latin-1").split())


def _legend(names: set[tuple[str, str]]) -> str:
    symbols_of: dict[str, list[str]] = {}
    for symbol, name in sorted(names):
        readable = _RENAMED.get(name, name)
        for article in _ARTICLES:
            readable = readable.removeprefix(article)
        symbols_of.setdefault(readable, []).append(symbol)

    def rank(entry: tuple[str, list[str]]) -> tuple[bool, bool, bool, bool, str]:
        name, symbols = entry
        return (name != "you", symbols[0] != GOAL, not name.endswith(MONSTER_MARK), symbols[0] == UNSEEN, name)

    entries = sorted(symbols_of.items(), key=rank)
    return ", ".join(f"{' '.join(dict.fromkeys(symbols))} {name}" for name, symbols in entries)
