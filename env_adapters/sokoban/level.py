"""Sokoban positions and the rules for moves.

Sets of cells are bit masks, in which bit ``row * size + column`` stands for a cell. The outer ring of a room is wall,
so a step from a floor cell never leaves the board.
"""

from dataclasses import dataclass

ACTIONS = ("up", "down", "left", "right")


@dataclass(frozen=True, slots=True)
class Level:
    """A position.

    Attributes:
        size: Cells along each side of the room, walls included.
        floor: Cells that are not wall.
        targets: Floor cells that are targets.
        boxes: Floor cells with a box.
        player: Index of the player's cell.
    """

    size: int
    floor: int
    targets: int
    boxes: int
    player: int

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes == self.targets


def steps(size: int) -> tuple[int, int, int, int]:
    """Return what each of ``ACTIONS`` adds to the index of a cell."""
    return -size, size, -1, 1


def move(level: Level, action: str) -> Level:
    """Return the position after one of ``ACTIONS``; the same object if a wall or a box blocks it."""
    step = steps(level.size)[ACTIONS.index(action)]
    ahead = level.player + step
    boxes = level.boxes
    if not level.floor >> ahead & 1:
        return level
    if boxes >> ahead & 1:
        behind = ahead + step
        if not (level.floor & ~boxes) >> behind & 1:
            return level
        boxes ^= 1 << ahead | 1 << behind
    return Level(level.size, level.floor, level.targets, boxes, ahead)
