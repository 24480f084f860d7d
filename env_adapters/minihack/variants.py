"""MiniHack task variants: level, actions and prompt texts of each.

Owns the table of variants and the system prompt made from it; needs no engine.
"""

from dataclasses import dataclass

from env_adapters.minihack.actions import APPLY_KEY, COMPASS, PICKUP
from env_adapters.minihack.levels import CUSTOM, RIVER_FORD
from env_adapters.nearest import unknown_value

_MOVES = tuple(COMPASS)
_RIVER = "Reach the staircase down on the far side of a river by pushing boulders into the water and crossing there."
_BOULDERS = "Walking into a boulder pushes it on. A boulder pushed into water fills that cell."


@dataclass(frozen=True, slots=True)
class Variant:
    """One task.

    Attributes:
        gym_id: Name of the level in MiniHack's own registry.
        goal: The task in words.
        actions: Allowed phrases, in the order in which they are listed to the model.
        rule: An additional rule for the system prompt.
        inventory: Whether the inventory is shown; without actions that use it, it would only cost tokens every turn.
        level: Description of a level that is not in that registry.
    """

    gym_id: str
    goal: str
    actions: tuple[str, ...] = _MOVES
    rule: str = ""
    inventory: bool = False
    level: str = ""


VARIANTS: dict[str, Variant] = {
    "room": Variant(
        "MiniHack-Room-5x5-v0",  # one fixed level for all seeds
        "Reach the staircase down in a small lit dungeon room; the start is in one corner, the staircase in another.",
    ),
    "room-random": Variant(
        "MiniHack-Room-Random-5x5-v0",
        "Reach the staircase down in a small lit dungeon room with nothing else in it.",
    ),
    "room-ultimate": Variant(
        "MiniHack-Room-Ultimate-5x5-v0",
        "Reach the staircase down in a small dark dungeon room with a monster and a hidden trap.",
    ),
    "room-ultimate-15": Variant(
        "MiniHack-Room-Ultimate-15x15-v0",
        "Reach the staircase down in a large dark dungeon room with monsters and hidden traps.",
    ),
    "maze": Variant(
        "MiniHack-MazeWalk-9x9-v0",
        "Reach the staircase down in a small unexplored maze with narrow passages and dead ends.",
    ),
    "keyroom": Variant(
        "MiniHack-KeyRoom-Dark-S5-v0",
        "Reach the staircase down in a small closet behind a locked door, inside a dark dungeon room in which the key "
        "lies.",
        (*_MOVES, PICKUP, APPLY_KEY),
        f"'{PICKUP}' takes what lies on your cell. '{APPLY_KEY}' opens a locked door next to you once you have the "
        "key. You cannot walk through a door diagonally.",
        inventory=True,
    ),
    "river": Variant("MiniHack-River-v0", _RIVER, rule=_BOULDERS),
    "river-narrow": Variant("MiniHack-River-Narrow-v0", _RIVER, rule=_BOULDERS),
    "river-ford": Variant(CUSTOM, _RIVER, rule=_BOULDERS, level=RIVER_FORD),
}


def get_variant(name: str) -> Variant:
    """Return the variant called ``name``.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in VARIANTS:
        raise ValueError(unknown_value("MiniHack variant", name, VARIANTS))
    return VARIANTS[name]


def compact(phrases: tuple[str, ...]) -> tuple[str, ...]:
    """Return the actions with directions alone, such as ``north``."""
    return tuple(phrase.removeprefix("move ") for phrase in phrases)


def build_instructions(variant: Variant, max_turns: int, actions: tuple[str, ...] | None = None) -> str:
    """Return the system prompt for ``variant`` with ``max_turns`` turns; ``actions`` if they have other names."""
    actions = actions or variant.actions
    rules = [
        "- You win by stepping onto the staircase down (>). Reach it before your hit points are gone.",
        "- Walls and solid rock block you. Moving into a monster attacks it.",
        f"- You have {max_turns} turns. A turn in which you are blocked or answer with an invalid action is lost.",
    ]
    below = ["a legend of its symbols", *(["your inventory"] if variant.inventory else []), "the game's message"]
    if variant.rule:
        rules.append(f"- {variant.rule}")
    return "\n".join(
        [
            "You play a game of NetHack shown as text.",
            "Each turn you see the 9x9 cells around you, one symbol per cell: the top row is north, the right column "
            "is east, and you are the @ in the centre. Cells shown as ~ are unseen or solid rock. Below the map are "
            f"{', '.join(below)} and your hit points.",
            "",
            "Rules:",
            *rules,
            "",
            f"Allowed actions: {', '.join(actions)}.",
            "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
            "for example:",
            f"<think>The staircase is to the north.</think><action>{actions[0]}</action>",
        ]
    )
