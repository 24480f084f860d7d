"""Keys of the records in a run's folder, as the tables of docs/run_folder.md have them."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/run_folder.md").read_text(encoding="utf-8")
EPISODE, TURN, CALL, BANK = "\n## Episodes\n", "\nA turn:\n", '\n`"event": "call"`', "\n## experience.jsonl\n"
"""What stands before each of the tables."""

_ROW = re.compile(r"^\| (?P<keys>`[^|]+) \| (?P<rest>.+) \|$", re.MULTILINE)


def rows(before: str) -> dict[str, str]:
    """Return the keys of the first table after ``before``, each with the rest of its row."""
    (_, text) = PAGE.split(before)
    table = next(part for part in text.split("\n\n") if part.lstrip().startswith("|"))
    return {key: row["rest"] for row in _ROW.finditer(table) for key in named(row["keys"])}


def named(text: str) -> set[str]:
    """Return the keys that a text names; parentheses hold their values."""
    while (bare := re.sub(r"\([^()]*\)", "", text)) != text:
        text = bare
    return {name for name in re.findall(r"`([^`]+)`", text) if name.isidentifier()}


def within(before: str, key: str) -> set[str]:
    """Return the keys of the objects that stand under a key of a table."""
    return named(rows(before)[key])


def call_event(name: str) -> set[str]:
    """Return the keys of an event of the extractor's calls."""
    if name == "call":
        return {"event", "call", "step", *rows(CALL)}
    (_, text) = PAGE.split(f'\n`"event": "{name}"`')
    return {"event", "call", "step", *named(text.partition("\n\n")[0])}


def bank_event(name: str) -> set[str]:
    """Return the keys of an event of the bank."""
    return {"event", "step", *within(BANK, name)}
