"""Finds the texts that begin turns in a chat template which uses plain text for it, such as ``USER:``.

Where a control token begins or ends every turn, text without such tokens cannot begin one. In the templates of Vicuna,
Alpaca and their like, it can.
"""

import re
from typing import Any

_CONTENTS = ("comprl0system", "comprl1user", "comprl2assistant", "comprl3user")
_ROLES = ("system", "user", "assistant", "user")


def turn_markers(tokenizer: Any, control: re.Pattern[str]) -> list[str]:
    """Return the texts around turns, or nothing if a control token stands between any two turns.

    Args:
        tokenizer: Hugging Face tokenizer; one without a chat template has no turns.
        control: Matches control tokens, which are no part of the result.
    """
    between = _between_turns(tokenizer)
    if all(control.search(text) or not text.strip() for text in between):
        return []
    parts = (part.strip() for text in between for part in control.split(text))
    return sorted({part for part in parts if part})


def marker_pattern(marker: str) -> str:
    """Return the regular expression of a marker; one that is a word counts only if nothing else is on its line."""
    pattern = r"\s+".join(map(re.escape, marker.split()))
    if re.fullmatch(r"[\w\s]+", marker):
        return rf"(?m:^[^\S\n]*{pattern}[^\S\n]*$)"
    return rf"(?<!\w){pattern}" if marker[0].isalnum() else pattern


def _between_turns(tokenizer: Any) -> list[str]:
    """Return what a rendered conversation has between the texts of its turns, and at its end."""
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
        return (
            parts if _CONTENTS[0] in shown else parts[1:]
        )  # before the first user, a default of the template may stand
    return []
