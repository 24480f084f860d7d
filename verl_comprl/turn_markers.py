"""Finds the texts that begin turns in a chat template which uses plain text for it, such as ``USER:``.

Where a control token begins or ends every turn, text without such tokens cannot begin one. In the templates of Vicuna,
Alpaca and their like, it can.
"""

import re
from collections.abc import Sequence
from typing import Any

_CONTENTS = ("comprl0system", "comprl1user", "comprl2assistant", "comprl3user")
_ROLES = ("system", "user", "assistant", "user")


def between_turns(tokenizer: Any) -> list[str]:
    """Return what a conversation, as ``tokenizer`` renders it, has between the texts of its turns, and at its end."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    for first in (0, 1):  # some templates refuse a system message
        messages = [
            {"role": role, "content": content} for role, content in zip(_ROLES[first:], _CONTENTS[first:], strict=True)
        ]
        try:
            text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
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
    lines = (line.strip() for text in between for part in control.split(text) for line in part.splitlines())
    return sorted({line for line in lines if any(map(str.isalnum, line))})  # signs alone are in any text


def marker_pattern(marker: str) -> str:
    """Return the regular expression of the part of a marker behind which a space breaks it; "" if there is none.

    ``USER:`` becomes ``USER :``, which can be read. It is not left out, since what stands behind it on its line would
    then be at the line's beginning. A marker that is a word, or a letter with signs, counts at the beginning of a line
    only, and a word if nothing else is on that line.
    """
    places = [place for place in range(1, len(marker)) if " " not in marker[place - 1 : place + 1]]
    before_signs = [place for place in places if marker[place - 1].isalnum() and not marker[place].isalnum()]
    if not places:
        return ""
    place = before_signs[-1] if before_signs else places[0]
    head, rest = _spaced(marker[:place]), _spaced(marker[place:])
    if re.fullmatch(r"[\w\s]+", marker):
        return rf"(?m:^[^\S\n]*{head}(?={rest}[^\S\n]*$))"
    if sum(map(str.isalnum, marker)) == 1:
        return rf"(?m:^[^\S\n]*{head}(?={rest}))"
    return rf"{head}(?={rest})"


def _spaced(text: str) -> str:
    """Return the regular expression of ``text`` with any white space where it has some."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))
