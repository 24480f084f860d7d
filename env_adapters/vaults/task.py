"""Options, goal, system prompt and observations of vaults."""

from dataclasses import dataclass

from env_adapters.vaults.world import FAMILIES, KINDS, MOVES, Vault

MAX_WORLD = 2**40
MAX_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Task:
    """Options of a group of episodes: world, family, number of kinds, and moves of a code."""

    world: int
    family: str
    kinds: int
    length: int

    def __post_init__(self) -> None:
        """Raise ValueError if an option is out of range."""
        for name, value, low, high in (
            ("world", self.world, 0, MAX_WORLD - 1),
            ("kinds", self.kinds, 1, len(KINDS)),
            ("length", self.length, 1, MAX_LENGTH),
        ):
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
        if self.family not in FAMILIES:
            raise ValueError(f"unknown family {self.family!r}; known: {', '.join(FAMILIES)}")

    @property
    def name(self) -> str:
        """Name of the group of tasks."""
        return f"vaults/{self.family}"

    def id_of(self, vault: Vault) -> str:
        """Return the name of an episode's task: that of its vault, since after some seeds vaults repeat."""
        return f"{self.name}/{self.world}/{vault.kind}-{vault.adjective}-{vault.noun}"

    def instructions(self, max_turns: int) -> str:
        """Return the system prompt for ``max_turns`` turns."""
        return "\n".join(
            [
                f"You open things that are locked. Each opens when {self.length} moves are made in the right order.",
                "A right move lights a lamp. A wrong move does nothing.",
                f"Allowed actions: {', '.join(MOVES)}.",
                f"You have {max_turns} turns. Answer with exactly one action, for example:",
                f"<action>{MOVES[0]}</action>",
            ]
        )


def goal(vault: Vault) -> str:
    """The task in words, which is also the retrieval query."""
    kind, family, adjective, noun = vault.words
    return f"Open the {kind} {family} {adjective} {noun}."


def observation(lit: int, *, move: str = "", hit: bool = False) -> str:
    """Return the text after a move, or at the start.

    Args:
        lit: Lamps that are lit now.
        move: The last move; "" at the start.
        hit: Whether it lit a lamp.
    """
    effect = f"lights lamp {lit}" if hit else "does nothing"
    happened = f"{move} {effect}. " if move else ""
    return f"{happened}Lamps lit: {lit}."
