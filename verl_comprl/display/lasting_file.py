"""A text file whose disk may be full, or whose terminal may be gone: a line is lost then, and not the run."""

import io
from contextlib import suppress
from typing import TextIO


class LastingFile(io.TextIOBase):
    """Writes to another file, which stays open, and goes on where that cannot be written."""

    def __init__(self, file: TextIO) -> None:
        """Write to ``file``."""
        self._file = file

    def write(self, text: str) -> int:
        """Write ``text`` if that is possible; returns its length in any case."""
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the file if that is possible."""
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Return whether the file is a terminal."""
        return self._file.isatty()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Encoding of the file."""
        return self._file.encoding
