"""Converts the output of programs to plain text for the model.

Owns the removal of terminal escape sequences.
"""

import re

# Terminal escape sequences: with parameters, with text, and of single characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def plain(data: bytes) -> str:
    """Return text without escape sequences and without control characters other than newline and tab."""
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _ESCAPES.sub("", text).translate(_CONTROLS)
