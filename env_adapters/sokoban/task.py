"""Options of Sokoban tasks, with the names, goals and system prompts made from them."""

from dataclasses import dataclass

from env_adapters.nearest import unknown_value
from env_adapters.sokoban.level import ACTIONS
from env_adapters.sokoban.observation import TARGET

DIFFICULTIES: dict[str, tuple[int, int]] = {"easy": (3, 6), "medium": (7, 12), "hard": (13, 20), "any": (3, 20)}
"""Minimum and maximum number of moves of a level's shortest solution."""

SIZES = (6, 7, 8)
_COUNTS = {1: "one box", 2: "two boxes", 3: "three boxes"}


@dataclass(frozen=True, slots=True)
class Task:
    """Options of a level.

    Attributes:
        size: Cells along each side of the room, walls included: 6, 7 or 8.
        boxes: Number of boxes and of targets: 1, 2 or 3.
        difficulty: A key of ``DIFFICULTIES``.
    """

    size: int
    boxes: int
    difficulty: str

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is out of range.
        """
        for option, value, allowed in (
            ("size", self.size, SIZES),
            ("boxes", self.boxes, tuple(_COUNTS)),
            ("difficulty", self.difficulty, tuple(DIFFICULTIES)),
        ):
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise ValueError(unknown_value(option, value, allowed))

    @property
    def name(self) -> str:
        """Name of the group of tasks."""
        return f"sokoban/{self.size}x{self.size}-{self.boxes}-{self.difficulty}"

    @property
    def lengths(self) -> tuple[int, int]:
        """Minimum and maximum number of moves of the shortest solution."""
        return DIFFICULTIES[self.difficulty]

    @property
    def goal(self) -> str:
        """The task in words."""
        return f"Push every box onto a target in a small Sokoban room with {_COUNTS[self.boxes]}."

    def instructions(self, max_turns: int) -> str:
        """Return the system prompt for ``max_turns`` turns."""
        return "\n".join(
            [
                "You play Sokoban shown as text.",
                "Each turn you see the whole room, one symbol per cell. Below the room are a legend of its symbols, "
                "what your last action did and how many boxes are on targets.",
                "",
                "Rules:",
                f"- You win as soon as every box is on a target ({TARGET}). Any box may go onto any target.",
                "- An action moves you by one cell; up is towards the first row. Moving into a box pushes it one cell "
                "on in the same direction, if the cell behind it is free of walls and boxes. Boxes cannot be pulled.",
                "- Walls, and boxes that cannot be pushed, block you.",
                f"- You have {max_turns} turns. A turn in which you are blocked or answer with an invalid action is "
                "lost.",
                "",
                f"Allowed actions: {', '.join(ACTIONS)}.",
                "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
                "for example:",
                "<think>The box is to my right, and the cell behind it is a target.</think><action>right</action>",
            ]
        )
