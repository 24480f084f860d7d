"""JSON-lines files of a run: metrics, evaluations and failed rollouts, kept consistent when the run is resumed."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_comprl.files import dated, write_atomically
from verl_comprl.record.lines import append_lines, decode, encode
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.redaction import redactor


def append_record(file: Path, record: Mapping[str, Any]) -> None:
    """Add a line with ``record``, which has a ``step``; one for which the disk has no room costs the run nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        append_lines(file, redactor()(encode(record)) + b"\n")
    except OSError as error:
        print(f"{file} lacks a line of step {record.get('step')}: {error}")


def rewind_log(file: Path, step: int) -> None:
    """Drop the records after ``step``, from which the run continues; the file as it was is kept with a time stamp.

    A record without a step, which is none of ours, is dropped with a line: nobody can say whether it is a later one.

    Args:
        file: The log; it may be missing.
        step: Last step that counts; -1 drops all.
    """
    if not file.exists():
        return
    lines = file.read_bytes().splitlines(keepends=True)
    kept: list[bytes] = []
    foreign = 0
    for line in lines:
        for record in decode([line]):  # none, if the process was killed while it wrote the line
            if not isinstance(record.get("step"), int | float):
                foreign += 1
            elif record["step"] <= step:
                kept.append(line)
    if len(kept) < len(lines):
        aside = _replace(file, b"".join(kept))
        if foreign:
            print(f"{file}: {foreign} lines without a step are dropped; {aside.name} has them")


def cut_log(file: Path, kept: Prefix) -> bool:
    """Drop what was appended after a checkpoint noted ``kept``; the file as it was is kept with a time stamp.

    Args:
        file: The log; it may be missing.
        kept: What belongs to the checkpoint.

    Returns:
        Whether the file begins with that. It is left as it is if not: the checkpoint is of a part of the run that
        was given up.
    """
    content = file.read_bytes() if file.exists() else b""
    if not kept.begins(content):
        return False
    if len(content) > kept.size:
        _replace(file, content[: kept.size])
    return True


def _replace(file: Path, content: bytes) -> Path:
    aside = dated(file)
    shutil.copyfile(file, aside)
    write_atomically(file, content)
    return aside
