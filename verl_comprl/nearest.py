"""The nearest of the known names to one that is unknown."""

from collections.abc import Iterable
from difflib import get_close_matches

_LEAST_BEGINNING = 3
"""Characters; fewer do not tell which name was meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question that names the nearest of ``known``, with a space at its end; "" if nothing is near."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if not near and len(name) >= _LEAST_BEGINNING:
        # A long name of which only the beginning was given is too far for difflib.
        near = sorted((other for other in names if other.startswith(name)), key=len)
    return f"did you mean {near[0]}? " if near else ""
