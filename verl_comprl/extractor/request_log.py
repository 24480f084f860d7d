"""Append-only file of the requests that wait, so that they outlive their process and need no memory.

Each line holds a request, or the id of one that is no longer pending. A line is in the kernel's hands when its call
returns: a process that is killed loses none. A machine that loses power may.

What cannot be read is kept: damaged lines in a file ``.damaged`` next to it, a whole file as ``.unread``.
"""

import io
import json
import os
from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from verl_comprl.record.lines import append_lines

_COMPACT_BYTES = 16 * 2**20
"""The file is written again when more than this, and more than what is pending, is of requests that no longer are."""


class RequestLog:
    """Texts by id, in the order in which they were added; to be used from one thread."""

    def __init__(self, path: Path) -> None:
        """Start empty; the file is created, or an earlier one replaced, with the first text.

        One that :meth:`recover` could not read is not replaced but renamed.
        """
        self.unread = False
        """Whether there is a file that could not be read; until the first text, :meth:`recover` may be tried again."""
        self.damaged = 0
        """Number of lines that could not be recovered."""
        self._path = path
        self._file: BinaryIO | None = None
        self._places: dict[str, tuple[int, int]] = {}  # offset and length of each line whose text waits
        self._owed: deque[str] = deque()  # keys that are no longer pending, which the file does not say yet
        self._damage = b""  # lines of the file that are not among the damaged ones next to it yet
        self._end = 0
        self._live = 0

    def __contains__(self, key: str) -> bool:
        """Return whether the text of ``key`` waits."""
        return key in self._places

    def recover(self) -> dict[str, str]:
        """Take over the file of a process that was killed; returns the texts that wait by id, oldest first.

        Damaged lines are counted, left out and kept; a torn last line is what a kill leaves, and is cut off.

        Raises:
            OSError: If there is a file that cannot be read; it stays as it is.
        """
        self.unread = True
        try:
            file = self._path.open("r+b", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            self.unread = False
            return {}
        try:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)  # or its rest could follow a shorter line in its place
        except OSError:
            file.close()
            raise
        self.unread, self._file = False, file
        texts: dict[str, str] = {}
        damage = []
        for line in io.BytesIO(content[:whole]):
            fields = _fields(line)
            if fields is None:
                damage.append(line)
            elif "done" in fields:
                texts.pop(fields["done"], None)
                self._places.pop(fields["done"], None)
            else:
                texts[fields["key"]] = fields["text"]
                self._places[fields["key"]] = (self._end, len(line))
            self._end += len(line)
        self._live = sum(length for _, length in self._places.values())
        if damage:
            self.damaged, self._damage = len(damage), b"".join(damage)
            with suppress(OSError):  # they stay in this file until it is written again
                self._compact()
        return texts

    def put(self, key: str, text: str) -> None:
        """Append a text, which takes the place of an earlier one of that key.

        Raises:
            OSError: If it cannot be written; nothing has changed then.
        """
        self._settle()  # before it: the key may be one of those
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
        fields = _fields(os.pread(self._open().fileno(), length, offset)) or {}
        if fields.get("key") != key:
            raise ValueError(f"another text than that of {key} at {offset} of {self._path}")
        return fields["text"]

    def remove(self, key: str) -> None:
        """Note that a text is no longer pending, if it was.

        Raises:
            OSError: If that cannot be written; :meth:`recover` would yield the text again until the next write.
        """
        place = self._places.pop(key, None)
        if place is None:
            return
        self._live -= place[1]
        self._owed.append(key)
        self._settle()
        if self._end - self._live > max(_COMPACT_BYTES, self._live):
            self._compact()

    def _settle(self) -> None:
        """Note the texts that are no longer pending and of which the file does not say so yet."""
        while self._owed:
            self._append(_line({"done": self._owed[0]}))
            self._owed.popleft()

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
            aside = self._path.with_suffix(".new")
            file = aside.open("w+b", buffering=0)
            try:
                if self.unread:  # not before: what keeps files from being opened may pass
                    self._path.rename(self._unused())
                    self.unread = False
                aside.replace(self._path)
            except OSError:
                file.close()
                raise
            self._file = file
        return self._file

    def _unused(self) -> Path:
        """Return a name for a file that could not be read, which no earlier one has."""
        names = (f"{self._path.name}.unread{number or ''}" for number in count())
        return next(path for path in map(self._path.with_name, names) if not path.exists())

    def _compact(self) -> None:
        """Write what waits to a file of its own, which takes the place of this one; nothing changes if that fails."""
        if self._damage:
            append_lines(self._path.with_name(f"{self._path.name}.damaged"), self._damage)
            self._damage = b""
        old, aside, places = self._open(), self._path.with_suffix(".new"), dict[str, tuple[int, int]]()
        new = aside.open("w+b")  # and not opened again later: that could fail when it has taken the place
        try:
            end = 0
            for key, (offset, length) in self._places.items():
                new.write(os.pread(old.fileno(), length, offset))
                places[key] = (end, length)
                end += length
            new.flush()
            aside.replace(self._path)
        except OSError:
            with suppress(OSError):
                new.close()
            with suppress(OSError):  # a full disk needs the room
                aside.unlink()
            raise
        old.close()
        self._file, self._places, self._end = new, places, end


def _fields(line: bytes) -> dict[str, str] | None:
    """Return what a line of ours holds; None if it is damaged."""
    try:
        fields: Any = json.loads(line)
    except ValueError:
        return None
    ours = isinstance(fields, dict) and [*fields] in (["done"], ["key", "text"])
    return fields if ours and all(isinstance(value, str) for value in fields.values()) else None


def _line(fields: dict[str, str]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"
