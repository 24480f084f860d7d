"""The words of a vault and the hidden rules of a world.

Owns what an episode is about: family, kind and name, the code that opens it, and which names are held out. A *world* is
one draw of all codes; in it a code belongs to a family and a kind, whatever the name. Texts are in ``task``.
"""

import random
from dataclasses import dataclass

FAMILIES = ("vault", "garden", "engine")
KINDS = ("iron", "copper", "glass", "wooden", "marble", "silver", "bronze", "leather")
ADJECTIVES = ("amber", "quiet", "rapid", "hollow")
NOUNS = ("fox", "river", "candle", "tower")
MOVES = ("left", "right", "up", "down", "push", "pull")

NAMES = tuple((adjective, noun) for adjective in ADJECTIVES for noun in NOUNS)
HELD_OUT = len(NAMES) // 4
"""Names of each rule that occur in held-out episodes only."""


@dataclass(frozen=True, slots=True)
class Vault:
    """What one episode is about.

    Attributes:
        family: One of ``FAMILIES``.
        kind: One of ``KINDS``; family and kind determine the code.
        adjective: First word of the name, which has nothing to do with the code.
        noun: Second word of the name.
        code: The moves that open it, in order.
    """

    family: str
    kind: str
    adjective: str
    noun: str
    code: tuple[str, ...]

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Kind, family, adjective and noun, in the order of the goal's text."""
        return self.kind, self.family, self.adjective, self.noun


def code_of(world: int, family: str, kind: str, length: int) -> tuple[str, ...]:
    """Return the code of a rule: independent and uniform over ``MOVES``, for every world, family, kind and length."""
    draw = random.Random(f"code/{world}/{family}/{kind}/{length}")
    return tuple(draw.choice(MOVES) for _ in range(length))


def names_of(world: int, family: str, kind: str, split: str) -> tuple[tuple[str, str], ...]:
    """Return the names of a rule in one split, ``train`` or ``val``. No name of a rule is in both."""
    names = list(NAMES)
    random.Random(f"names/{world}/{family}/{kind}").shuffle(names)
    return tuple(names[:HELD_OUT] if split == "val" else names[HELD_OUT:])


def draw_vault(world: int, family: str, kinds: int, length: int, split: str, number: int) -> Vault:
    """Return the vault of an episode.

    Args:
        world: Number of the world.
        family: One of ``FAMILIES``.
        kinds: Number of kinds in the world: the first ones of ``KINDS``.
        length: Moves of a code.
        split: ``train`` or ``val``.
        number: Number of the episode in its split. Consecutive numbers go through the kinds, then through the names of
            each kind in the split, and then repeat.
    """
    kind = KINDS[number % kinds]
    names = names_of(world, family, kind, split)
    adjective, noun = names[number // kinds % len(names)]
    return Vault(family, kind, adjective, noun, code_of(world, family, kind, length))
