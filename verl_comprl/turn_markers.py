"""Finds the texts that begin turns in a chat template which uses plain text for it, such as ``USER:``.

Where a control token begins or ends every turn, text without such tokens cannot begin one. In the templates of Vicuna,
Alpaca and their like, it can.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

_CONTENTS = ("comprl0system", "comprl1user", "comprl2assistant", "comprl3user")
_ROLES = ("system", "user", "assistant", "user")
_FEWEST_LETTERS = 2
"""Of a marker: signs alone are in any text."""


def between_turns(tokenizer: Any) -> list[str]:
    """Return what a conversation, as ``tokenizer`` renders it, has between the texts of its turns, and at its end."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    for first in (0, 1):  # some templates refuse a system message
        messages = [
            {"role": role, "content": content} for role, content in zip(_ROLES[first:], _CONTENTS[first:], strict=True)
        ]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception:  # templates raise what they like
            continue
        shown = [content for content in _CONTENTS[first:] if content in text]
        parts = re.split("|".join(shown), text) if shown else [""]
        # Where the template takes no system message, it may begin with one of its own.
        return parts if _CONTENTS[0] in shown else parts[1:]
    return []


def turn_markers(between: Sequence[str], control: re.Pattern[str]) -> list[str]:
    """Return the texts that begin turns, or nothing if a control token stands between any two turns.

    Args:
        between: What is between turns.
        control: Matches control tokens, which are no part of the result.
    """
    if all(control.search(text) or not text.strip() for text in between):
        return []
    return sorted({line for text in between for part in control.split(text) for line in _last_line(part)})


def _last_line(text: str) -> Iterator[str]:
    """Yield the last line that is not blank: others end the turn before, and may be missing."""
    line = text.rstrip().rpartition("\n")[2].strip()
    if sum(map(str.isalnum, line)) >= _FEWEST_LETTERS:
        yield line


def marker_pattern(marker: str) -> str:
    """Return the regular expression of a marker; one that is a word counts only if nothing else is on its line."""
    pattern = r"\s+".join(map(re.escape, marker.split()))
    if re.fullmatch(r"[\w\s]+", marker):
        return rf"(?m:^[^\S\n]*{pattern}[^\S\n]*$)"
    return rf"(?<![A-Za-z0-9_]){pattern}" if marker[0].isalnum() else pattern


def broken(marker: str) -> str:
    """Return a marker with a space in it, or ``> `` before a word, so that it can be read and is none.

    It is not left out, since what stands behind it on its line would then be at the line's beginning.
    """
    if not marker[-1].isalnum() and not marker[-1].isspace():
        return f"{marker[:-1]} {marker[-1]}"
    return f"{marker[0]} {marker[1:]}" if not marker[0].isalnum() and not marker[0].isspace() else f"> {marker}"
