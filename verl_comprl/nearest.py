"""The nearest of the known names to one that is unknown."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question that names the nearest of ``known``, with a space at its end; "" if nothing is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""
