"""Finds shortest Sokoban solutions by exhaustive search backward from the solved positions.

The length counts all moves of the player, not only pushes, because every move costs a turn.
"""

from collections.abc import Iterator, Sequence

from env_adapters.sokoban.level import ACTIONS, Level, move, steps

State = tuple[int, int]
"""The variable part of a position: the player's cell and the boxes."""


def layers(size: int, floor: int, targets: int) -> Iterator[list[State]]:
    """Yield the states whose shortest solution takes 0 moves, then those of 1 move, and so on until there are none.

    A move is undone by stepping back, and a push by stepping back with the box.
    """
    layer = [(cell, targets) for cell in range(size * size) if (floor & ~targets) >> cell & 1]
    seen = set(layer)
    while layer:
        yield layer
        before: list[State] = []
        for player, boxes in layer:
            for step in steps(size):
                back = player - step
                if not (floor & ~boxes) >> back & 1:
                    continue
                if (state := (back, boxes)) not in seen:
                    seen.add(state)
                    before.append(state)
                ahead = player + step
                if boxes >> ahead & 1 and (state := (back, boxes ^ (1 << ahead | 1 << player))) not in seen:
                    seen.add(state)
                    before.append(state)
        layer = before


def descend(level: Level, below: Sequence[list[State]]) -> list[str]:
    """Return a shortest solution of ``level``.

    Args:
        level: A position that is solved in ``len(below)`` moves.
        below: The layers of fewer moves, from 0 on.
    """
    solution: list[str] = []
    for layer in reversed(below):
        action, level = next(
            (action, after) for action in ACTIONS if ((after := move(level, action)).player, after.boxes) in layer
        )
        solution.append(action)
    return solution


def solve(level: Level) -> list[str] | None:
    """Return a shortest solution of ``level``, or None if it cannot be solved."""
    below: list[list[State]] = []
    for layer in layers(level.size, level.floor, level.targets):
        if (level.player, level.boxes) in layer:
            return descend(level, below)
        below.append(layer)
    return None
