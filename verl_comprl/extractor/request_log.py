"""Append-only file of the requests that wait, so that they outlive their process and need no memory.

A line that holds a request, or the id of one that waits no more. A line is in the kernel's hands when its call returns:
a process that is killed loses none. A machine that loses power may.
"""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

_COMPACT_BYTES = 16 * 2**20
"""The file is written again when more than this, and more than what waits, belongs to requests that wait no more."""
_REMEMBERED = 10_000
"""Latest keys of texts that wait no more; what the file holds of them is small, and written again with it."""


class RequestLog:
    """Texts by id, in the order in which they were added; to be used from one thread."""

    def __init__(self, path: Path) -> None:
        """Start empty; the file is created, or an earlier one replaced, with the first text."""
        self._path = path
        self._file: BinaryIO | None = None
        self._places: dict[str, tuple[int, int]] = {}  # offset and length of each line whose text waits
        self._done: deque[str] = deque(maxlen=_REMEMBERED)
        self._end = 0
        self._live = 0

    def __len__(self) -> int:
        """Return the number of texts that wait."""
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        """Return whether the text of ``key`` waits."""
        return key in self._places

    def keys(self) -> list[str]:
        """Return the keys of all texts that wait, and of the latest that wait no more."""
        return [*self._done, *self._places]

    def recover(self) -> dict[str, str]:
        """Take over the file of a process that was killed; returns the texts that wait by id, oldest first.

        Raises:
            OSError: If there is a file that cannot be read.
        """
        if not self._path.exists():
            return {}
        texts: dict[str, str] = {}
        self._file = self._path.open("r+b", buffering=0)
        for line in self._file.read().splitlines(keepends=True):
            try:
                fields = json.loads(line)
                if line[-1:] != b"\n" or not _is_ours(fields):
                    raise ValueError("torn")
            except ValueError:  # what the killed process could not finish, which the next line overwrites
                break
            if "done" in fields:
                self._done.append(fields["done"])
                texts.pop(fields["done"], None)
                self._places.pop(fields["done"], None)
            else:
                texts[fields["key"]] = fields["text"]
                self._places[fields["key"]] = (self._end, len(line))
            self._end += len(line)
        self._file.truncate(self._end)
        self._live = sum(length for _, length in self._places.values())
        return texts

    def put(self, key: str, text: str) -> None:
        """Append a text, which takes the place of an earlier one of that key.

        Raises:
            OSError: If it cannot be written; nothing has changed then.
        """
        line = _line({"key": key, "text": text})
        place = (self._append(line), len(line))
        self._live += len(line) - self._places.get(key, (0, 0))[1]
        self._places[key] = place

    def read(self, key: str) -> str:
        """Return the text of ``key``.

        Raises:
            OSError: If it cannot be read.
            ValueError: If something else has changed the file.
        """
        offset, length = self._places[key]
        fields = json.loads(os.pread(self._open().fileno(), length, offset))
        if not _is_ours(fields) or fields.get("key") != key:
            raise ValueError(f"another text than that of {key} at {offset} of {self._path}")
        return str(fields["text"])

    def remove(self, key: str) -> None:
        """Note that a text waits no more, if it did.

        Raises:
            OSError: If that cannot be written; :meth:`recover` would yield the text again.
        """
        place = self._places.pop(key, None)
        if place is None:
            return
        self._live -= place[1]
        self._done.append(key)
        self._append(_line({"done": key}))
        if self._end - self._live > max(_COMPACT_BYTES, self._live):
            self._compact()

    def _append(self, line: bytes) -> int:
        """Write a line at the end and return its offset; a part of one is never followed by anything."""
        file, start = self._open(), self._end
        written = 0
        while written < len(line):
            written += os.pwrite(file.fileno(), line[written:], start + written)
        self._end = start + len(line)
        return start

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w+b", buffering=0)
        return self._file

    def _compact(self) -> None:
        """Write what waits to a file of its own, which takes the place of this one."""
        aside = self._path.with_suffix(".new")
        places = {}
        with aside.open("wb") as new:
            end = new.write(b"".join(_line({"done": key}) for key in self._done))
            for key, (offset, length) in self._places.items():
                new.write(os.pread(self._open().fileno(), length, offset))
                places[key] = (end, length)
                end += length
        aside.replace(self._path)
        self._open().close()
        self._file, self._places, self._end = self._path.open("r+b", buffering=0), places, end


def _is_ours(fields: Any) -> bool:
    names = (["done"], ["key", "text"])
    return isinstance(fields, dict) and [*fields] in names and all(isinstance(value, str) for value in fields.values())


def _line(fields: dict[str, str]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"
