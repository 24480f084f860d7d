"""The answers of a recorded extractor: entries that depend on what the agent did, and on nothing else."""

import re
from zlib import crc32


def lesson_about(text: str) -> str:
    """Return an answer with one entry for the actions in a text."""
    number = crc32("".join(re.findall("<action>.*?</action>", text)).encode())
    return f'<answer>[{{"operation": "add", "title": "lesson {number}", "content": "about {number}"}}]</answer>'
