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
    _print(table)


def print_entries(entries: Sequence[Experience], scores: Sequence[float] | None = None) -> None:
    """Print one row per entry, cut at the width of the terminal, with its score in front if there are ``scores``."""
    table = Table(box=None, pad_edge=False)
    columns = ("id", "tasks", "step", "uses", "success", "", "title")
    for name in columns if scores is None else ("score", *columns):
        table.add_column(name, no_wrap=name != "title")  # only the title is shortened on a narrow terminal
    for row, entry in enumerate(entries):
        state = "quarantined" if entry.quarantined else ""
        title = entry.title or entry.content
        values = (entry.id[:8], _brief(entry.tasks), entry.created_step, entry.uses, entry.success_rate, state)
        cells = map(_cell, values if scores is None else (f"{scores[row]:.3f}", *values))
        table.add_row(*cells, _cell(title, no_wrap=True, overflow="ellipsis"))
    _print(table)


def _brief(tasks: Sequence[str]) -> str:
    """Return the first task and how many others there are: with all of them an entry would have no room for a title."""
    return " ".join([*tasks[:1], *([f"+{len(tasks) - 1}"] if len(tasks) > 1 else [])])


def _formatted(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


def _cell(value: Any, **style: Any) -> Text:
    return Text(" ".join(printable(_formatted(value)).split()), **style)


def _print(table: Table) -> None:
    Console(file=sys.stdout, highlight=False).print(table)
