"""The nearest of the known names to one that is unknown."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return the question that names the nearest of ``known``, with a space at its end; "" if nothing is near."""
    near = (
        get_close_matches(name, [item for item in known if isinstance(item, str)], n=1) if isinstance(name, str) else []
    )
    return f"did you mean {near[0]}? " if near else ""


def unknown_value(what: str, value: object, known: Iterable[object]) -> str:
    """Return the message about a value of an option that does not exist.

    Args:
        what: Name of the option.
        value: What was given.
        known: What is allowed.
    """
    allowed = list(known)
    return f"unknown {what} {value!r}; {did_you_mean(value, allowed)}known: {', '.join(map(str, allowed))}"
