"""Entries in the bank of a run that the run has not written, such as those of a run that used it meanwhile."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_comprl.record.lines import decode
from verl_comprl.record.reader import EVENTS


def strangers(ids: Iterable[str], run: Path) -> set[str]:
    """Return the entries that the run has neither written nor begun with, as its events say.

    An entry is a stranger, too, if its event could not be written, or the process was killed before it was.

    Args:
        ids: Of the entries.
        run: The run's folder.

    Raises:
        OSError: If its events cannot be read.
    """
    unknown = set(ids)
    files = _event_files(run) if unknown else ()
    for file in files:
        unknown -= _written(file)
        if not unknown:
            break
    return unknown


def _event_files(run: Path) -> Iterator[Path]:
    """Yield the run's events, then as they were before each resume, whose bank may not have been restored: a kill."""
    if (file := run / EVENTS).exists():
        yield file
    yield from sorted(run.glob(f"{file.stem}-*{file.suffix}"), reverse=True)


def _written(file: Path) -> set[str]:
    with file.open("rb") as lines:
        # Most events are of reading, which need not be parsed: a run may have a gigabyte of them.
        others = (line for line in lines if b'"event":"read"' not in line)
        events = (event for event in decode(others) if event.get("event") in ("given", "written", "merged"))
        return {event["entry"] for event in events if isinstance(event.get("entry"), str)}
