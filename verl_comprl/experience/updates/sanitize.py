"""Make text from models and environments safe to store and to put into a prompt.

Owns the removal of everything a chat template or our own parsing would take for structure. Lengths are the caller's.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

_TAGS = "tool_call|tool_response|tools|experience|answer|think|action|verdict"
_BAR = r"[|\uff5c]"  # some templates use the full-width bar
# Template markers like <|im_end|>, tool tags and our own.
_MARKER = re.compile(rf"<{_BAR}[^<>]*{_BAR}>|<\s*+/?\s*+(?:{_TAGS})\b[^<>]*>", re.IGNORECASE)
_HALF_MARKER = re.compile(rf"<{_BAR}|{_BAR}>")
_KEPT_CONTROLS = "\n\t"
_CONTROLS = {"Cc", "Cf", "Cs"}


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, **kwargs: Any) -> Sequence[int]:
        """Turn text into ids."""
        ...

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """Turn ids into text."""
        ...


def sanitize(text: str, max_chars: int) -> str:
    """Return ``text`` without control characters, chat-template markers, tool tags and our delimiters.

    Args:
        text: Untrusted text.
        max_chars: Upper bound of the result's length in characters; the cut comes before the markers are removed,
            which bounds the work that nested markers can cause.

    Returns:
        Text on which the function itself has nothing left to do; white space at the ends is stripped.
    """
    text = "".join(char for char in text if char in _KEPT_CONTROLS or unicodedata.category(char) not in _CONTROLS)
    text = text[:max_chars]
    # Until nothing changes: removing a marker can bring the halves of another one together.
    while (shorter := _MARKER.sub("", text)) != text or (shorter := _HALF_MARKER.sub("", text)) != text:
        text = shorter
    return text.strip()


def cap_tokens(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """Return ``text``, or its beginning of at most ``max_tokens`` tokens, sanitised again: a cut can make a marker."""
    ids, kept = tokenizer.encode(text, add_special_tokens=False), max_tokens
    while len(ids) > max_tokens:
        # What decodes from n ids can encode to more, where the cut split a word; then a few more have to go.
        text = sanitize(tokenizer.decode(ids[:kept]).rstrip("\ufffd"), len(text))
        ids, kept = tokenizer.encode(text, add_special_tokens=False), kept - 1
    return text
