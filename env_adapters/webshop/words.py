"""Splits product texts into words, for search and for comparing titles."""

import re

_FUNCTION_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Lucene's stop words, which search and the comparison of titles ignore."""

_WORD = re.compile(r"\w+(?:[.']\w+)*")


def split_words(text: str) -> list[str]:
    """Return the words of ``text`` in lower case, without stop words and the possessive s."""
    words = (word.removesuffix("'s") for word in _WORD.findall(text.lower()))
    return [word for word in words if word not in STOP_WORDS]


def content_words(title: str) -> tuple[str, ...]:
    """Return the words of a title that contain a letter, without stop words; repeated words are kept."""
    return tuple(word for word in split_words(title) if not word.isnumeric() and any(map(str.isalpha, word)))
