"""The part of a file of lines that was there at some moment, as a checkpoint notes it."""

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

TAIL = 4096
"""Bytes at its end by which the part is known again."""


class Prefix(NamedTuple):
    """The first bytes of a file that is only appended to."""

    size: int
    """Bytes."""
    tail: int
    """CRC-32 of the last of them, of at most :data:`TAIL`."""

    @classmethod
    def of(cls, file: Path) -> "Prefix":
        """Return all of a file as it is now; a missing one is empty.

        Raises:
            OSError: If it is there and cannot be read.
        """
        try:
            with file.open("rb") as lines:
                size = lines.seek(0, 2)
                lines.seek(max(0, size - TAIL))
                return cls(size, crc32(lines.read(min(size, TAIL))))  # it may have grown since
        except FileNotFoundError:
            return cls(0, crc32(b""))

    def begins(self, content: bytes) -> bool:
        """Return whether a file's content begins with this part."""
        return len(content) >= self.size and crc32(content[max(0, self.size - TAIL) : self.size]) == self.tail
