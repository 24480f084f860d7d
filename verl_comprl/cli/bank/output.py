"""Formats bank entries for the terminal and as JSON.

Owns the columns and the removal of characters that could control a terminal, since models and other people write
entries. JSON output needs no such care: it is plain ASCII.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_comprl.display.printable import printable
from verl_comprl.experience import Experience

_COLUMNS = {"id": "id", "tasks": "tasks", "step": "created_step", "uses": "uses", "success": "success_rate"}
"""Heading of each column of a list → field of the entry."""
_WIDE, _ROOM_NEEDED = 100, ("tasks", "step")
"""Columns of a terminal from which on a list shows these as well: on a narrower one they would leave texts no room."""
_LONGEST = 25
"""Characters of any column but the text: a date and time."""


def entry_fields(entry: Experience) -> dict[str, Any]:
    """Return an entry's fields and the totals of its usage, JSON-compatible."""
    totals = ("uses", "successes", "success_rate", "asked", "asked_successes", "posterior_success")
    return {**entry.model_dump(mode="json"), **{name: getattr(entry, name) for name in totals}}


def format_time(seconds: float) -> str | None:
    """Return seconds since the epoch as an ISO date and time; None for 0, which means never."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds") if seconds else None


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one row per field; long values are wrapped."""
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        if isinstance(value, Mapping):
            value = " · ".join(f"{key} {_formatted(item)}" for key, item in value.items())
        table.add_row(name.replace("_", " "), _cell(value))
    _console().print(table)


def print_entries(entries: Sequence[Experience], scores: Sequence[float] | None = None, sorted_by: str = "") -> None:
    """Print one line per entry, cut at the width of the terminal.

    Args:
        entries: In this order.
        scores: Printed in front of them.
        sorted_by: Field whose values are printed too.
    """
    console = _console()
    columns = {name: field for name, field in _COLUMNS.items() if console.width >= _WIDE or name not in _ROOM_NEEDED}
    if sorted_by and sorted_by not in (*columns.values(), "title", "content", "text"):
        columns[sorted_by.replace("_", "\n")] = sorted_by  # in several lines: it may be longer than its values
    shown = {name: [_brief(entry, field) for entry in entries] for name, field in columns.items()}
    if scores is not None:
        shown = {"score": [f"{score:.3f}" for score in scores], **shown}
    if any(entry.quarantined for entry in entries):
        shown[""] = ["quarantined" if entry.quarantined else "" for entry in entries]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=True, max_width=_LONGEST)
    table.add_column("title / content")  # only this one is shortened on a narrow terminal
    for entry, *values in zip(entries, *shown.values(), strict=True):
        text = " / ".join(filter(None, (entry.title, entry.content)))
        table.add_row(*map(_cell, values), _cell(text, no_wrap=True, overflow="ellipsis"))
    console.print(table)


def _brief(entry: Experience, field: str) -> Any:
    """Return a field as it fits into a column: of several tasks the first one and how many others there are."""
    value = getattr(entry, field)
    if isinstance(value, tuple):
        return " ".join([*value[:1], *([f"+{len(value) - 1}"] if len(value) > 1 else [])])
    if field.endswith("_at"):
        return format_time(value)
    return value[:8] if field == "id" else value


def _formatted(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


def _cell(value: Any, **style: Any) -> Text:
    return Text(" ".join(printable(_formatted(value)).split()), **style)


def _console() -> Console:
    return Console(file=sys.stdout, highlight=False)
