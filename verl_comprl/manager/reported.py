"""Episodes that the manager has counted, so that a second report of one is ignored, also after a kill.

Owns the memory of their ids and its file. An id is in the kernel's hands before its episode is counted, and after the
episode is in the queue: of a manager that is killed in between, uses and rewards of one are lost, and never counted
twice. A machine that loses power may lose lines of the file; its run continues from a checkpoint, which holds the ids
as well.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from verl_comprl.files import dated, patiently
from verl_comprl.record.lines import append_lines, decode, encode

logger = logging.getLogger(__name__)

REPORTED = "reported.jsonl"
REMEMBERED_STEPS = 100
"""Steps for which an episode is remembered: longer than an asynchronous trainer holds a prompt."""
_SLACK_LINES = 10_000
"""The file is written again when it has more lines of forgotten episodes than this, and than of remembered ones."""
_LATE_LINES = 100
"""Lines that there was no room for, and that are tried again with the next one."""


class ReportedEpisodes:
    """Ids of episodes with their actor steps. Its methods never raise: what cannot be written is counted."""

    def __init__(self, file: Path, *, recover: bool = False) -> None:
        """Start empty, or with what ``file`` holds of a process that was killed."""
        self._file = file
        self._steps: dict[str, int] = {}
        self._late: dict[str, int] = {}
        """Those that the file lacks, as its disk was full."""
        self._lines = 0
        self._first = 0
        """First step whose episodes are remembered."""
        self.lost = 0
        """Episodes whose ids could not be written or read: after a kill a second report of them would count.

        Those that were written later, when there was room, stay counted.
        """
        if recover:
            self._recover()
        else:
            with suppress(OSError):  # a resumed run restores the ids of its checkpoint
                file.unlink(missing_ok=True)

    def knows(self, id: str, step: int) -> bool:
        """Return whether an episode of ``step`` has been counted, or may have been, and has been forgotten since."""
        return id in self._steps or step < self._first

    def add(self, id: str, step: int) -> None:
        """Remember an episode of ``step``, before it is counted."""
        self._steps[id] = step
        steps = {id: step} | dict(islice(self._late.items(), _LATE_LINES))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            append_lines(self._file, b"".join(_line(*each) for each in steps.items()))
        except OSError as error:
            self._late[id] = step
            self._lose(1, error)
        else:
            self._lines += len(steps)
            self._late = {id: at for id, at in self._late.items() if id not in steps}

    def forget(self, step: int) -> None:
        """Forget the episodes that are too old to be reported again when ``step`` is closed."""
        self._first = step - REMEMBERED_STEPS
        self._steps = {id: at for id, at in self._steps.items() if at >= self._first}
        self._late = {id: at for id, at in self._late.items() if at >= self._first}
        if self._lines - len(self._steps) > max(_SLACK_LINES, len(self._steps)):
            self._rewrite()

    def state(self) -> dict[str, int]:
        """Return the state for a checkpoint, JSON-compatible."""
        return dict(self._steps)

    def restore(self, state: Mapping[str, int]) -> None:
        """Replace the state with what :meth:`state` returned, in the file, too."""
        self._steps = dict(state)
        self._rewrite()

    def _recover(self) -> None:
        try:
            lines = patiently(self._file.read_bytes).splitlines()
        except FileNotFoundError:
            return
        except (OSError, MemoryError) as error:
            self._lose(1, error)
            with suppress(OSError):  # kept: it would be written again from what a checkpoint has
                self._file.rename(dated(self._file))
            return
        self._steps = {
            record["id"]: record["step"]
            for record in decode(lines)
            if isinstance(record.get("id"), str) and isinstance(record.get("step"), int)
        }
        self._lines = len(lines)

    def _rewrite(self) -> None:
        aside = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(b"".join(_line(id, step) for id, step in self._steps.items()))
            aside.replace(self._file)
        except OSError as error:
            self._lose(len(self._steps), error)
            with suppress(OSError):  # a full disk needs the room
                aside.unlink()
        else:
            self._lines = len(self._steps)
            self._late.clear()

    def _lose(self, episodes: int, error: Exception) -> None:
        if not self.lost:
            logger.warning("%s is not complete (further failures are only counted): %s", self._file, error)
        self.lost += episodes


def _line(id: str, step: int) -> bytes:
    return encode({"id": id, "step": step}) + b"\n"
