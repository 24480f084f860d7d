"""Renders Sokoban positions as text and parses such texts.

Owns the symbols: the usual notation of Sokoban levels, except that the floor is not blank, because blanks would be lost
between the spaces.
"""

from env_adapters.sokoban.level import Level

WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = "#_.$*@+"
_GROUND = (WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET)

LEGEND = (
    f"Legend: {PLAYER} you, {PLAYER_ON_TARGET} you on a target, {BOX} box, {BOX_ON_TARGET} box on a target, "
    f"{TARGET} target, {FLOOR} floor, {WALL} wall"
)


def render(level: Level, message: str) -> str:
    """Write a position as text.

    Args:
        level: The position.
        message: What the last move did; may be empty.

    Returns:
        The room with symbols separated by spaces, the legend, the message and how many boxes are on targets.
    """
    size, floor, targets, boxes = level.size, level.floor, level.targets, level.boxes
    symbols = [
        _GROUND[(floor >> cell & 1) + (targets >> cell & 1) + 2 * (boxes >> cell & 1)] for cell in range(size * size)
    ]
    symbols[level.player] = PLAYER_ON_TARGET if targets >> level.player & 1 else PLAYER
    rows = [" ".join(symbols[start : start + size]) for start in range(0, size * size, size)]
    placed = (boxes & targets).bit_count()
    return "\n".join(
        [*rows, LEGEND, f"Message: {message or '(none)'}", f"Boxes on targets: {placed} of {boxes.bit_count()}"]
    )


def parse(observation: str) -> Level:
    """Return the position that an observation shows.

    Args:
        observation: Text made by ``render``; the text about an invalid action may precede it.

    Raises:
        ValueError: If the text shows no position.
    """
    lines = observation.splitlines()
    end = lines.index(LEGEND) if LEGEND in lines else 0
    size = lines[end - 1].count(WALL) if end else 0  # the last row is wall from end to end
    symbols = " ".join(lines[max(0, end - size) : end]).split(" ")
    players = symbols.count(PLAYER) + symbols.count(PLAYER_ON_TARGET)
    if not size or len(symbols) != size * size or players != 1:
        raise ValueError(f"no Sokoban room in {observation!r}")

    def cells(*of: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(symbols) if symbol in of)

    return Level(
        size=size,
        floor=cells(FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET),
        targets=cells(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET),
        boxes=cells(BOX, BOX_ON_TARGET),
        player=cells(PLAYER, PLAYER_ON_TARGET).bit_length() - 1,
    )
