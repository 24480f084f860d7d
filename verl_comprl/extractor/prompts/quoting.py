"""Marks lines of untrusted text that look like the structure of the extractor's prompts.

An observation, a goal or an entry can contain what the templates say between their parts: an outcome, a further turn, a
numbered entry with its record. Such a line is shown, and begins with ``>``, which nothing of ours does. What the
structure is follows from the templates. All other lines stay as they are, without control tokens.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from verl_comprl.extractor.prompts.templates import headings
from verl_comprl.untrusted import SYNTAX, folded, may_have_tokens, without_control_tokens

# Marks of a list or of a heading, white space and tags: a reader takes "- **Outcome:**" for "Outcome:". Possessive, as
# a tag can be matched in two ways, which would take exponential time.
_BEFORE = r"(?:<[^<>]*+>|(?:[0-9]++[a-z]?|[a-z]|[ivxl]{1,5})[.):]|[^a-z0-9])*+"
_SHORT = "earlier[^a-z0-9]*experience"
"""Of a longer heading."""
# Of which every control token has one: what comes before may be a token of the model that reads. With few characters
# between, or a line of such characters would take quadratic time.
_BEHIND = r"[<>\[\]{}|][^a-z0-9<>\[\]{}|]{0,8}"
_HEADING = rf"({'|'.join([*sorted(headings()), _SHORT])})[^a-z0-9]*?(?:[:=]|\Z)"
_NUMBER = r"[0-9]++[\s*_]*[.):\]](?:\W|\Z)"
_HEADINGS = re.compile(_BEFORE + _HEADING), re.compile(_BEHIND + _HEADING)
_NUMBERS = re.compile(r"[\W_]*" + _NUMBER), re.compile(_BEHIND + _NUMBER)
"""At the beginning of a line, and behind a token."""
_TOKEN = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\][^\[\]\s]{0,16}\[|(?<!\|)\|++[^|\s]{1,64}\|++")
"""May be a control token, from which the prompt is cleaned later: it stands for a space."""


class Quote(Protocol):
    """:func:`quoted` for one tokenizer."""

    def __call__(self, text: str, *, part: str = "") -> str:
        """Return ``text`` with ``> `` before each line that looks like a part of the prompt."""
        ...


def quoted(text: str, *, part: str = "", tokenizer: Any = None) -> str:
    """Return ``text`` with ``> `` before each line that a reader could take for a part of the prompt.

    Args:
        text: Untrusted text.
        part: The heading under which it stands, in lower case: this one begins nothing new there.
        tokenizer: That of the model that reads the prompt. A token of it inside of another model's marker hides that
            one until it is removed; then both are gone, and what stood behind them begins a line.
    """
    lines, after_empty = [], False
    # Before, and not only when the prompt is complete: a marker at the beginning of a line hides what comes after it.
    # Most texts have nothing that it takes, and most of a prompt's time would be spent here.
    has_tokens = may_have_tokens(text, tokenizer)
    for line in (without_control_tokens(text, tokenizer) if has_tokens else text).splitlines(keepends=True):
        seen = folded(line).lower()
        views = (seen, _TOKEN.sub(" ", seen)) if has_tokens else (seen,)
        heading = _first(_HEADINGS, views)
        # A number begins an entry of a list only after an empty line; others are steps inside of an entry.
        number = after_empty and _first(_NUMBERS, views)
        lines.append(f"> {line}" if number or (heading and heading[1] != part) else line)
        after_empty = not all(view.strip() for view in views)
    return "".join(lines)


def _first(patterns: tuple[re.Pattern[str], re.Pattern[str]], views: Sequence[str]) -> re.Match[str] | None:
    """Return the first match in one of the forms of a line: at its beginning or, if it may have tokens, behind one."""
    at_start, behind = patterns
    for view in views:
        if found := at_start.match(view) or (SYNTAX.search(view) and behind.search(view)):
            return found
    return None
