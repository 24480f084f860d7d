"""Experience entries of the miniature as text: titles of three styles, bodies of three kinds, and their recognition.

Owns the language in which the warm-started extractor writes. Which entry it should write is what training finds out.
"""

import random
from collections.abc import Sequence

from env_adapters.vaults.world import ADJECTIVES, FAMILIES, KINDS, MOVES, NOUNS, Vault

ORDINALS = ("first", "second", "third")
WORKED, TRIED, SEEN = "worked:", "tried:", "seen:"
IDLE = ("dust", "walls", "light", "noise", "water", "stone")
STYLES = ("name", "kind_adjective", "kind_family")
"""Title styles. Only ``kind_family`` names the rule, so only its entries are found by all of a rule's instances."""


def title(vault: Vault, style: str) -> str:
    """Return the title of a style for a vault."""
    return {
        "name": f"{vault.adjective} {vault.noun}",
        "kind_adjective": f"{vault.kind} {vault.adjective}",
        "kind_family": f"{vault.kind} {vault.family}",
    }[style]


def moves_content(moves: Sequence[str], heading: str) -> str:
    """Return a content that lists up to three moves."""
    return " ".join([heading, *(word for pair in zip(ORDINALS, moves, strict=False) for word in pair)])


def idle_content(rng: random.Random) -> str:
    """Return a content that says nothing about moves."""
    return " ".join([SEEN, *rng.choices(IDLE, k=rng.randint(2, 5))])


def style_of(title: str) -> str:
    """Return what the words of a title refer to, in the order of ``STYLES``; "other" if it is none of them."""
    groups = [next((name for name, words in _GROUPS.items() if word in words), "other") for word in title.split()]
    return {
        ("adjective", "noun"): "name",
        ("kind", "adjective"): "kind_adjective",
        ("kind", "family"): "kind_family",
    }.get(tuple(groups), "other")


def moves_of(content: str) -> tuple[str, ...] | None:
    """Return the moves of a content, () for one without moves, and None if it is not well-formed."""
    heading, _, rest = content.partition(" ")
    words = rest.split()
    if heading == SEEN:
        return () if words and all(word in IDLE for word in words) else None
    moves = tuple(words[1::2])
    ordinals = tuple(words[::2])
    formed = heading in (WORKED, TRIED) and len(ordinals) == len(moves) and ordinals == ORDINALS[: len(moves)]
    return moves if formed and moves and all(move in MOVES for move in moves) else None


_GROUPS = {"family": FAMILIES, "kind": KINDS, "adjective": ADJECTIVES, "noun": NOUNS}
WORDS = (*FAMILIES, *KINDS, *ADJECTIVES, *NOUNS, *MOVES, *ORDINALS, *IDLE, WORKED, TRIED, SEEN)
"""Words that the tokenizer keeps as one token each."""


def is_right(content: str, code: Sequence[str]) -> bool:
    """Return whether a content claims to have worked and lists the whole code."""
    return content.startswith(WORKED) and moves_of(content) == tuple(code)
