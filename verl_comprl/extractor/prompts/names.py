"""Names of tasks as a prompt shows them: an entry from elsewhere, or a file of episodes, may call a task anything.

A name stands in the middle of a line of ours. Nothing of it can end that line, or the part of the record that it is in.
"""

import re
import unicodedata
from collections.abc import Sequence

from verl_comprl.untrusted import folded

MOST_NAMES = 12
"""Shown of one entry: more say nothing to the model, and would leave no room for the entries next to it."""
_LONGEST = 80
"""Characters of a name."""
_SIGNS = frozenset(" -_./+@#:")
"""In names of tasks, such as ``minihack/room-ultimate``, besides letters and digits."""


def shown_name(name: str) -> str:
    """Return a name in one line, not too long, with ``_`` for each character that names of tasks do not have."""
    text = "".join(map(_part, name[:_LONGEST])) + "…" * (len(name) > _LONGEST)
    return re.sub(r":(?!\w)", "_", text) or "unknown"  # as in an import path; with a space behind, it is a record's


def shown_names(names: Sequence[str]) -> str:
    """Return names with commas between them, and how many there are besides."""
    more = len(names) - MOST_NAMES
    shown = ", ".join(map(shown_name, names[:MOST_NAMES])) or "unknown"
    return f"{shown} and {more} more" if more > 0 else shown


def _part(char: str) -> str:
    """Return a character as it may be in a name; a sign that looks like another one becomes that."""
    seen = folded(char)
    if seen.isalnum() or unicodedata.category(char).startswith("M"):  # some scripts write vowels as marks
        return char
    return seen if seen and _SIGNS.issuperset(seen) else "_"
