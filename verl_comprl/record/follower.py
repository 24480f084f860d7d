"""Follows a file of JSON lines to which another process appends."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from verl_comprl.record.lines import Record, decode


class LineFollower:
    """The records of a file, up to where it was written at the last :meth:`poll`."""

    def __init__(self, file: Path, select: Callable[[Record], Record | None] = lambda record: record) -> None:
        """Follow ``file``, which need not exist yet.

        Args:
            file: Lines of JSON.
            select: Returns what to keep of a record, None for nothing; metrics of a long run have millions of values.
        """
        self.records: list[Record] = []
        self._file, self._select = file, select
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def poll(self) -> None:
        """Read what is new.

        A last line without its end is left for the next call, and what is not JSON is left out: the writer is in the
        middle of it, or was killed there. A run that is resumed replaces its file; the records are then read again.
        """
        try:
            stream = self._file.open("rb")
        except FileNotFoundError:  # not written yet, or being replaced
            return
        with stream:
            status = os.fstat(stream.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._identity, self._offset, self.records = identity, 0, []
            stream.seek(self._offset)
            selected = map(self._select, decode(self._whole_lines(stream)))
            self.records += (record for record in selected if record is not None)

    def _whole_lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            yield line
