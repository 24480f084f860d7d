"""Entries of a bank that a run's events do not account for: changed by another run, or by a command between starts."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from verl_comprl.record.lines import decode
from verl_comprl.record.reader import EVENTS

COMES = ("given", "written", "merged")
"""Events by which an entry comes into the bank of a run."""
QUARANTINED = ("quarantined",)


def without_event(ids: Iterable[str], run: Path, kinds: Collection[str]) -> set[str]:
    """Return the entries of which the run has no event of some kinds.

    An event may also be missing because it could not be written, or the process was killed before it was.

    Args:
        ids: Of the entries.
        run: The run's folder.
        kinds: One or more.

    Raises:
        OSError: If its events cannot be read.
    """
    unknown = set(ids)
    files = _event_files(run) if unknown else ()
    for file in files:
        unknown -= _named(file, kinds)
        if not unknown:
            break
    return unknown


def _event_files(run: Path) -> Iterator[Path]:
    """Yield the run's events, then as they were before each resume, whose bank may not have been restored: a kill."""
    if (file := run / EVENTS).exists():
        yield file
    yield from sorted(run.glob(f"{file.stem}-*{file.suffix}"), reverse=True)


def _named(file: Path, kinds: Collection[str]) -> set[str]:
    with file.open("rb") as lines:
        # Most events are of reading, which need not be parsed: a run may have a gigabyte of them.
        others = (line for line in lines if b'"event":"read"' not in line)
        events = (event for event in decode(others) if event.get("event") in kinds)
        return {event["entry"] for event in events if isinstance(event.get("entry"), str)}
