"""Marks lines of untrusted text that look like the structure of the extractor's prompts.

An observation, a goal or an entry can contain what the templates say between their parts: an outcome, a further turn, a
numbered entry with its record. Such a line is shown, and begins with ``>``, which nothing of ours does.
"""

import re

from verl_comprl.untrusted import replace_marked

_BREAK = r"[\n\r\v\f\x85\u2028\u2029]"
_HEADINGS = "|".join(
    (
        r"(?:rules|task|episode|entries|experience|(?:other )?earlier experience(?: that the agent read)?)[ \t]*:",
        r"turn \d+|(?:(?:final )?observation|question|advice|answer)[ \t]*:|\(\d+ turns left out\)",
    )
)
_STRUCTURE = re.compile(
    rf"{_BREAK}(?=[ \t]*(?:(?:{_HEADINGS})[ \t]*(?:{_BREAK}|\Z)"  # alone on their line, as in the templates
    r"|outcome[ \t]*:|\d+\.[ \t]*\(tasks\b))"
    rf"|(?<=\n)\r?\n(?=[ \t]*\d+\.[ \t])",  # a number begins an entry of a list only after an empty line
    re.IGNORECASE,
)


def quoted(text: str) -> str:
    """Return ``text`` with ``> `` before each line that a reader could take for a part of the prompt."""
    return replace_marked(f"\n{text}", _STRUCTURE, "\n> ")[1:]
