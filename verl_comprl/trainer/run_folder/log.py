"""JSON-lines files of a run: metrics, evaluations and failed rollouts, kept consistent when the run is resumed.

Beside the metrics are verl's backends, none of which ends a run where it cannot take them.
"""

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from verl_comprl.errors import WaitTimeout
from verl_comprl.files import dated, write_atomically
from verl_comprl.record.lines import append_lines, decode, encode
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.reader import METRICS
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
        Whether the file begins with that. It is left as it is if not: the checkpoint is of another folder, or of a part
        of the run that was given up.
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


def add_metrics_file(tracking: Any, file: Path, wanted: str | Collection[str], say: Callable[[str], None]) -> None:
    """Add ``file`` to verl's ``Tracking``, once, and report backends that verl left out, or that fail later.

    verl continues without mlflow if it cannot be started, and says so only in its log. Any other backend that raises,
    as TensorBoard's does for good after one error of the disk, would end the run.

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
    others = {name: _Lasting(name, backend, say) for name, backend in tracking.logger.items()}
    tracking.logger = {METRICS_FILE: MetricsFile(file), **others}  # ours first: nothing keeps it from its line


class MetricsFile:
    """Backend of verl's ``Tracking`` that appends; verl's ``file`` backend empties its file when a run is resumed."""

    def __init__(self, file: Path) -> None:
        """Write to ``file``."""
        self._file = file

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Add the metrics of a step, in the format of verl's ``FileLogger``."""
        append_record(self._file, {"step": step, "data": data})


class _Lasting:
    """Backend of verl's ``Tracking`` that may fail: metrics are lost, and the run goes on."""

    def __init__(self, name: str, backend: Any, say: Callable[[str], None]) -> None:
        self._name, self._backend, self._say = name, backend, say
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def log(self, *args: Any, **kwargs: Any) -> None:
        self._try(self._backend.log, *args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self._try(self._backend.finish, *args, **kwargs)

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except WaitTimeout:  # whoever waits for it to finish has given it up
            raise
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                what = f"trainer.logger: {self._name} has failed and may lack metrics from here on"
                self._say(f"{what} ({type(error).__name__}: {error}); {METRICS} has them")
