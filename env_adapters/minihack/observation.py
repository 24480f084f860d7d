"""Renders the NetHack screen as text.

Owns the crop around the agent, the names in the legend and the lines below. Takes plain arrays and needs no engine.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

RADIUS = 4
"""Cells to each side of the agent: a 9x9 crop."""

AGENT = "@"
GOAL = ">"
UNSEEN = "~"
"""Shown for blank cells, which would be lost between the spaces; no cell of these levels is drawn with this symbol."""

OPEN_DOOR = "'"
"""Shown for open doors, which the game draws like walls, as - or |."""

FULL_LEGEND = (
    f"{AGENT} you, {GOAL} staircase down (goal), < staircase up, . floor or doorway, # corridor, | and - walls, "
    f"+ closed door, {OPEN_DOOR} open door, ( tool such as a key, ^ trap, ` boulder, }} water, letters monsters, "
    f"{UNSEEN} unseen or rock"
)

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
    inventory: Sequence[str] | None = None,
) -> str:
    """Write the screen as text.

    Args:
        chars: Symbol codes of the level, shape (rows, columns).
        descriptions: Zero-terminated names of the cells, shape (rows, columns, length).
        monsters: Which cells show a monster, the agent included, boolean, shape (rows, columns).
        position: Column and row of the agent.
        message: The game's message; may be empty.
        hit_points: Current and maximum.
        inventory: Names of the carried items, or None to leave them out.

    Returns:
        The crop with symbols separated by spaces, the legend, the inventory, the message and the hit points.
    """
    column, row = position
    top, left = max(0, row - RADIUS), max(0, column - RADIUS)
    window = (slice(top, row + RADIUS + 1), slice(left, column + RADIUS + 1))
    # Converted to lists and bytes: indexing the arrays cell by cell would take longer than the game itself.
    codes, beasts = chars[window].tolist(), monsters[window].tolist()
    length = descriptions.shape[2]
    texts, width = np.ascontiguousarray(descriptions[window]).tobytes(), len(codes[0])
    lines: list[str] = []
    names: set[tuple[str, str]] = set()
    for y in range(row - RADIUS - top, row + RADIUS + 1 - top):
        symbols: list[str] = []
        for x in range(column - RADIUS - left, column + RADIUS + 1 - left):
            symbol, name = UNSEEN, ""
            if (x + left, y + top) == position:
                symbol, name = AGENT, "you"
            elif 0 <= y < len(codes) and 0 <= x < width and codes[y][x] not in (0, 32):
                start = (y * width + x) * length
                symbol, name = chr(codes[y][x]), _decode(texts[start : start + length])
                if name == "open door":
                    symbol = OPEN_DOOR
                if beasts[y][x]:
                    name = f"{name} {MONSTER_MARK}"
            symbols.append(symbol)
            names.add((symbol, name))
        lines.append(" ".join(symbols))
    lines.append(f"Legend: {_legend(names)}")
    if inventory is not None:
        lines.append(f"Inventory: {', '.join(inventory) or '(none)'}")
    current, maximum = hit_points
    return "\n".join([*lines, f"Message: {message or '(none)'}", f"Hit points: {current}/{maximum}"])


def squeeze(observation: str) -> str:
    """Return an observation with symbols next to each other and the legend of all symbols."""
    lines = observation.split("\n")
    size = 2 * RADIUS + 1
    return "\n".join([*(line[::2] for line in lines[:size]), f"Legend: {FULL_LEGEND}", *lines[size + 1 :]])


def decode(text: Any) -> str:
    """Return a zero-terminated array of character codes as one line of text."""
    return _decode(bytes(text))


@lru_cache(maxsize=1024)
def _decode(text: bytes) -> str:
    return " ".join(text.partition(b"\0")[0].decode("latin-1").split())


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
