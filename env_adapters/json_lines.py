"""Reads the objects of a file of JSON lines, which hands or another program may have written."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_SHOWN = 80
"""Characters of a wrong line that its error shows."""


def objects_of(file: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number, from 1, and the object of each line that is not empty.

    Args:
        file: Where the lines are from.
        lines: With or without their line breaks.

    Raises:
        ValueError: If one is no JSON object; names file and line.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{file}, line {number} is no JSON object: {line.decode().strip()[:_SHOWN]!r}")
        yield number, value
