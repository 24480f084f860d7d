"""Options, goal and system prompt of FrozenLake tasks; needs no engine."""

from dataclasses import dataclass

ACTIONS = ("left", "down", "right", "up")  # the order is gymnasium's

_SLIPPERY = "- The ice is slippery: a move goes where you want in one of three cases, else to the left or right of it."


@dataclass(frozen=True, slots=True)
class Task:
    """Options of a lake: cells along each side, and whether moves slip."""

    size: int
    is_slippery: bool

    def __post_init__(self) -> None:
        """Raise ValueError if an option is out of range."""
        if type(self.size) is not int or not 4 <= self.size <= 8:
            raise ValueError(f"size must be an integer in [4, 8], got {self.size!r}")
        if not isinstance(self.is_slippery, bool):
            raise ValueError(f"is_slippery must be true or false, got {self.is_slippery!r}")

    @property
    def name(self) -> str:
        """Name of the group of tasks."""
        return f"frozenlake/{self.size}x{self.size}{'-slippery' * self.is_slippery}"

    @property
    def goal(self) -> str:
        """The task in words."""
        return f"Cross a {'slippery ' * self.is_slippery}frozen lake to the goal without falling into a hole."

    def instructions(self, max_turns: int) -> str:
        """Return the system prompt for ``max_turns`` turns."""
        rules = [
            "- You win by stepping onto the goal (G), and lose by stepping into a hole (O).",
            "- An action moves you by one cell; up is towards the first row. The edge of the lake blocks you.",
            *([_SLIPPERY] if self.is_slippery else []),
            f"- You have {max_turns} turns. A turn in which you are blocked or answer with an invalid action is lost.",
        ]
        return "\n".join(
            [
                "You walk on a frozen lake shown as text.",
                "Each turn you see the whole lake, one symbol per cell, and below it a legend of the symbols.",
                "",
                "Rules:",
                *rules,
                "",
                f"Allowed actions: {', '.join(ACTIONS)}.",
                "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
                "for example:",
                "<think>There is a hole to my right, so I go around it.</think><action>down</action>",
            ]
        )
