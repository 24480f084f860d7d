"""JSON-lines files of a run: metrics, evaluations and failed rollouts, kept consistent when the run is resumed."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

EVALUATIONS = "evaluations.jsonl"
METRICS = "metrics.jsonl"


def append_record(file: Path, record: Mapping[str, Any]) -> None:
    """Add a line with ``record``, which has a ``step``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lines:
        lines.write(orjson.dumps(dict(record), option=orjson.OPT_SERIALIZE_NUMPY, default=str) + b"\n")


def rewind_log(file: Path, step: int) -> None:
    """Drop the records after ``step``, from which the run continues; the file as it was is kept with a time stamp.

    Args:
        file: The log; it may be missing.
        step: Last step that counts; -1 drops all.
    """
    if not file.exists():
        return
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _step(line) <= step]
    if len(kept) < len(lines):
        file.rename(file.with_name(f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}{file.suffix}"))
        file.write_text("".join(kept), encoding="utf-8")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")  # the process was killed while it wrote this line


class MetricsFile:
    """Backend of verl's ``Tracking`` that appends; verl's ``file`` backend empties its file when a run is resumed."""

    def __init__(self, file: Path) -> None:
        """Write to ``file``."""
        self._file = file

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Add the metrics of a step, in the format of verl's ``FileLogger``."""
        append_record(self._file, {"step": step, "data": data})
