"""Removes control characters and structural markers from untrusted text, and cuts it to a number of tokens.

Owns what a stored text must not contain: control tokens of model families (``untrusted``), tool tags and our own tags.
The lengths are settings of the bank.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

from verl_comprl.experience.config import BankConfig
from verl_comprl.untrusted import FAMILIES, SYNTAX, replace_marked

_TAGS = "tool_call|tool_response|tools|experience|answer|think|action|verdict"
_MARKER = re.compile(rf"{FAMILIES}|<\s*+/?\s*+(?:{_TAGS})\b[^<>]*>", re.IGNORECASE)
_HALF_MARKER = re.compile(r"<(?=\|)|\|(?=>)")
"""Broken and not removed: some programming languages have such operators."""
_KEPT_CONTROLS = "\n\t"
_CONTROLS = {"Cc", "Cf", "Cs"}
_PASSES = 16
LINE_CHARS = 200
"""Of a name or a reason."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that are used here."""

    def encode(self, text: str, **kwargs: Any) -> Sequence[int]:
        """Turn text into ids."""
        ...

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """Turn ids into text."""
        ...


def sanitize(text: str, max_chars: int) -> str:
    """Return ``text`` without control characters, control tokens of models, tool tags and our delimiters.

    Args:
        text: Untrusted text.
        max_chars: Upper bound of the result's length in characters. The text is cut before the markers are removed,
            which bounds the work that nested markers can cause, and again where a broken marker has made it longer.

    Returns:
        Text that sanitising again would not change, without white space at its ends.
    """
    allowed = (char for char in text if char in _KEPT_CONTROLS or unicodedata.category(char) not in _CONTROLS)
    text = "".join(islice(allowed, max_chars))
    # Until nothing changes: removing a marker can join the halves of another one.
    for _ in range(_PASSES):
        if (shorter := replace_marked(text, _MARKER, "")) == text and (
            shorter := replace_marked(text, _HALF_MARKER, "{} ")
        ) == text:
            return text[:max_chars].strip()  # what is broken gets longer
        text = shorter
    # Markers inside of markers, more often than in any honest text: what markers are made of goes. Each pass takes a
    # millisecond in which no query is answered, and a thousand of them fit into a content.
    return replace_marked(text, SYNTAX, "").strip()


def one_line(text: str) -> str:
    """Return the beginning of a text, sanitised, in one line."""
    return sanitize(" ".join(text.split()), LINE_CHARS)


def clean_texts(title: str, content: str, *, config: BankConfig, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return title and content of an entry as a bank stores them."""
    title, content = sanitize(title, config.max_title_chars), sanitize(content, config.max_content_chars)
    return title, cap_tokens(content, tokenizer, config.max_content_tokens) if tokenizer else content


def cap_tokens(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """Return ``text`` cut to at most ``max_tokens`` tokens, and then sanitised again: a cut can form a marker."""
    ids, kept = tokenizer.encode(text, add_special_tokens=False), max_tokens
    while len(ids) > max_tokens:
        # Text decoded from n ids can encode to more than n if the cut split a word: try again with one id fewer.
        text = sanitize(tokenizer.decode(ids[:kept]).rstrip("\ufffd"), len(text))
        ids, kept = tokenizer.encode(text, add_special_tokens=False), kept - 1
    return text
