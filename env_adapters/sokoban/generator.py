"""Generates Sokoban levels from seeds.

Owns how rooms are drawn and which split they belong to: no room of an even seed is also a room of an odd seed.
"""

import hashlib
import random
from itertools import islice

from env_adapters.sokoban.level import Level, steps
from env_adapters.sokoban.search import descend, layers

_FLOOR = (0.45, 0.9)  # smallest and largest share of floor among the cells inside the outer wall


def generate(seed: int, size: int, boxes: int, lengths: tuple[int, int]) -> tuple[Level, list[str]]:
    """Return the level of a seed and a shortest solution of it.

    The length of the solution is drawn uniformly from ``lengths``; then rooms are drawn until one has a start position
    of exactly this length with no box on a target.

    Args:
        seed: Non-negative; its parity selects the split.
        size: Cells along each side, walls included.
        boxes: Number of boxes, and of targets.
        lengths: Fewest and most moves of the shortest solution.
    """
    rng = random.Random(seed)
    length = rng.randint(*lengths)
    while True:
        cells = _carve(rng, size)
        floor = _mask(cells)
        targets = _mask(rng.sample(cells, boxes))
        # Different seeds can draw the same room, so the room itself decides which split it belongs to.
        if side(size, floor, targets) != seed % 2:
            continue
        *below, starts = islice(layers(size, floor, targets), length + 1)
        starts = [state for state in starts if not state[1] & targets]
        if len(below) == length and starts:
            player, placed = rng.choice(starts)
            level = Level(size, floor, targets, placed, player)
            return level, descend(level, below)


def side(size: int, floor: int, targets: int) -> int:
    """Return the split of a room with its targets: 0 for even seeds (training), 1 for odd seeds (held out).

    Rooms that are equal up to shifts, rotations and reflections are in the same split.
    """
    cells = ["#_."[(floor >> cell & 1) + (targets >> cell & 1)] for cell in range(size * size)]
    rows = ["".join(cells[start : start + size]) for start in range(0, size * size, size)]
    rows = _without_walls(_turned(_without_walls(rows)))
    looks: list[list[str]] = []
    for _ in range(4):
        rows = _turned(rows)
        looks += [rows, [row[::-1] for row in rows]]
    return hashlib.sha256("\n".join(min(looks)).encode()).digest()[0] % 2


def _without_walls(rows: list[str]) -> list[str]:
    return [row for row in rows if row.strip("#")]


def _turned(rows: list[str]) -> list[str]:
    return ["".join(column) for column in zip(*reversed(rows), strict=True)]


def _carve(rng: random.Random, size: int) -> list[int]:
    """Return the cells of a connected floor, grown from a random cell."""
    least, most = (round(share * (size - 2) ** 2) for share in _FLOOR)
    count = rng.randint(least, most)
    cells = [rng.randint(1, size - 2) * size + rng.randint(1, size - 2)]
    while len(cells) < count:
        cell = rng.choice(cells) + rng.choice(steps(size))
        row, column = divmod(cell, size)
        if 0 < row < size - 1 and 0 < column < size - 1 and cell not in cells:
            cells.append(cell)
    return cells


def _mask(cells: list[int]) -> int:
    return sum(1 << cell for cell in cells)
