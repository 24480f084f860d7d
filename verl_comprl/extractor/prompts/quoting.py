"""Marks lines of untrusted text that look like the structure of the extractor's prompts.

An observation, a goal or an entry can contain what the templates say between their parts: an outcome, a further turn, a
numbered entry with its record. Such a line is shown, and begins with ``>``, which nothing of ours does. What the
structure is follows from the templates. All other lines stay as they are, without control tokens.
"""

import re

from verl_comprl.extractor.prompts.templates import headings
from verl_comprl.untrusted import folded, replace_marked, without_control_tokens

# Marks of a list or of a heading, white space and tags: a reader takes "- **Outcome:**" for "Outcome:". Possessive, as
# a tag can be matched in two ways, which would take exponential time.
_BEFORE = r"(?:<[^<>]*+>|(?:\d+|[a-z])[.):]|[^a-z0-9])*+"
_SHORT = "earlier[^a-z0-9]*experience"
"""Of a longer heading."""
_HEADING = re.compile(rf"{_BEFORE}({'|'.join([*sorted(headings()), _SHORT])})[^a-z0-9]*?(?:[:=]|\Z)")
_NUMBER = re.compile(r"[\W_]*\d+[\s*_]*[.):\]](?:\W|\Z)")
_BRACKETED = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}")
"""May be a token of the model that reads the prompt, from which it is removed later."""
_OPEN = re.compile(r"<(?=[^\s<>][^<>]*+(?:<|\Z|(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])> ))")
"""Begin of a tag that only a ``>`` of the prompt would end: the tag would be removed with what is ours in it."""


def quoted(text: str, *, part: str = "") -> str:
    """Return ``text`` with ``> `` before each line that a reader could take for a part of the prompt.

    Args:
        text: Untrusted text.
        part: The heading under which it stands, in lower case: this one begins nothing new there.
    """
    lines, after_empty = [], False
    # Before, and not only when the prompt is complete: a marker at the beginning of a line hides what comes after it.
    for line in without_control_tokens(text).splitlines(keepends=True):
        seen = folded(line).lower()
        bare = _BRACKETED.sub(" ", seen)
        heading = _HEADING.match(seen) or _HEADING.match(bare)
        # A number begins an entry of a list only after an empty line; others are steps inside of an entry.
        number = after_empty and (_NUMBER.match(seen) or _NUMBER.match(bare))
        lines.append(f"> {line}" if number or (heading and heading[1] != part) else line)
        after_empty = not bare.strip()
    return replace_marked("".join(lines), _OPEN, "< ")
