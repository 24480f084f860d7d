"""``comprl env list``: every environment, whether it can be used here, and its options with their defaults."""

import inspect
import json
import re
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from env_adapters import list_environments, make
from env_adapters.registry import environment_class
from verl_comprl.display.first_line import first_line


def run(*, as_json: bool) -> int:
    """Print the list."""
    rows = [describe(name) for name in list_environments()]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "usable", "task", "options"):
        table.add_column(column)
    for row in rows:
        options = " ".join(f"{name}={value}" for name, value in row["options"].items())
        table.add_row(row["name"], "yes" if row["usable"] else "no", Text(_brief(row)), Text(options))
    Console(highlight=False).print(table)
    return 0


def _brief(row: dict[str, Any]) -> str:
    return re.split("[;.] ?", row["task"])[0] if row["usable"] else row["problem"]


def describe(name: str) -> dict[str, Any]:
    """Return what the list shows of an environment; with the problem if it cannot be made here."""
    found: dict[str, Any] = {"name": name, "usable": False, "task": "", "options": {}, "problem": ""}
    try:
        kind = environment_class(name)
        found["task"] = (inspect.getdoc(kind) or "").split("\n")[0]
        found["options"] = {
            parameter.name: parameter.default
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.default is not parameter.empty
        }
        make(name).close()
        found["usable"] = True
    except Exception as error:  # whatever a family raises, of this package or another, the list is complete
        found["problem"] = first_line(error)
    return found
