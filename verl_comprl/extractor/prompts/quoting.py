"""Marks lines of untrusted text that look like the structure of the extractor's prompts.

An observation, a goal or an entry can contain what the templates say between their parts: an outcome, a further turn, a
numbered entry with its record. Such a line is shown, and begins with ``>``, which nothing of ours does. What the
structure is follows from the templates. All other lines stay as they are.
"""

import re

from verl_comprl.extractor.prompts.templates import headings
from verl_comprl.untrusted import folded

# Marks of a list or of a heading, white space and tags: a reader takes "- **Outcome:**" for "Outcome:". Possessive, as
# a tag can be matched in two ways, which would take exponential time.
_BEFORE = r"(?:<[^<>]*+>|(?:\d+|[a-z])[.):]|[^a-z0-9])*+"
_SHORT = "earlier[^a-z0-9]*experience"
"""Of a longer heading."""
_HEADING = re.compile(rf"{_BEFORE}({'|'.join([*sorted(headings()), _SHORT])})[^a-z0-9]*?(?:[:=]|\Z)")
_NUMBER = re.compile(r"[\W_]*\d+[\s*_]*[.):\]](?:\W|\Z)")


def quoted(text: str, *, part: str = "") -> str:
    """Return ``text`` with ``> `` before each line that a reader could take for a part of the prompt.

    Args:
        text: Untrusted text.
        part: The heading under which it stands, in lower case: this one begins nothing new there.
    """
    lines, after_empty = [], False
    for line in text.splitlines(keepends=True):
        seen = folded(line).lower()
        heading = _HEADING.match(seen)
        # A number begins an entry of a list only after an empty line; others are steps inside of an entry.
        number = after_empty and _NUMBER.match(seen)
        lines.append(f"> {line}" if number or (heading and heading[1] != part) else line)
        after_empty = not seen.strip()
    return "".join(lines)
