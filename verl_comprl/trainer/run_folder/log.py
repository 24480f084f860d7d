"""JSON-lines files of a run: metrics, evaluations and failed rollouts, kept consistent when the run is resumed."""

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from verl_comprl.files import write_atomically
from verl_comprl.record.lines import append_lines, decode, encode
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.redaction import redactor

METRICS_FILE = "metrics_file"
"""Our name among the backends of verl's ``Tracking``."""


def append_record(file: Path, record: Mapping[str, Any]) -> None:
    """Add a line with ``record``, which has a ``step``; one for which the disk has no room costs the run nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        append_lines(file, redactor()(encode(record)) + b"\n")
    except OSError as error:
        print(f"{file} lacks a line of step {record.get('step')}: {error}")


def rewind_log(file: Path, step: int) -> None:
    """Drop the records after ``step``, from which the run continues; the file as it was is kept with a time stamp.

    Args:
        file: The log; it may be missing.
        step: Last step that counts; -1 drops all.
    """
    if not file.exists():
        return
    lines = file.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _step(line) <= step]
    if len(kept) < len(lines):
        _replace(file, b"".join(kept))


def cut_log(file: Path, kept: Prefix) -> bool:
    """Drop what was appended after a checkpoint noted ``kept``; the file as it was is kept with a time stamp.

    Args:
        file: The log; it may be missing.
        kept: What belongs to the checkpoint.

    Returns:
        Whether the file begins with that. It is left as it is if not: the checkpoint is of another folder, or of a part
        of the run that was given up.
    """
    content = file.read_bytes() if file.exists() else b""
    if not kept.begins(content):
        return False
    if len(content) > kept.size:
        _replace(file, content[: kept.size])
    return True


def _replace(file: Path, content: bytes) -> None:
    shutil.copyfile(file, file.with_name(f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}{file.suffix}"))
    write_atomically(file, content)


def _step(line: bytes) -> float:
    # A line that is no record: the process was killed while it wrote it.
    return next((record["step"] for record in decode([line])), float("inf"))


def add_metrics_file(tracking: Any, file: Path, wanted: str | Collection[str], say: Callable[[str], None]) -> None:
    """Add ``file`` to verl's ``Tracking``, once, and report backends that verl left out.

    verl continues without mlflow if it cannot be started, and says so only in its log.

    Args:
        tracking: verl's.
        file: The run's metrics.
        wanted: Backends that were asked for.
        say: Called with a line.
    """
    if METRICS_FILE in tracking.logger:
        return
    names = {wanted} if isinstance(wanted, str) else {*wanted}
    if missing := sorted(names - {*tracking.logger}):
        say(f"trainer.logger: {', '.join(missing)} could not be started; the run continues without (docs/metrics.md)")
    tracking.logger[METRICS_FILE] = MetricsFile(file)


class MetricsFile:
    """Backend of verl's ``Tracking`` that appends; verl's ``file`` backend empties its file when a run is resumed."""

    def __init__(self, file: Path) -> None:
        """Write to ``file``."""
        self._file = file

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Add the metrics of a step, in the format of verl's ``FileLogger``."""
        append_record(self._file, {"step": step, "data": data})
