"""Folder with one compressed file of JSON lines per actor step.

A file is written aside and renamed, so that a process that is killed leaves whole files. gzip, since every Python has
it; none of verl's dependencies brings zstandard.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from verl_comprl.files import dated

_NAME = re.compile(r"step_(\d+)\.jsonl\.gz")
_LEVEL = 4
"""Of gzip: 6 takes twice the time for files a tenth smaller."""


class StepFiles:
    """The files of one folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``."""
        self.folder = folder

    def steps(self) -> list[int]:
        """Return the steps that have a file, in order."""
        names = (_NAME.fullmatch(file.name) for file in self.folder.glob("step_*.jsonl.gz"))
        return sorted(int(name[1]) for name in names if name)

    def size(self) -> int:
        """Return the bytes of all files."""
        total = 0
        for step in self.steps():
            with suppress(FileNotFoundError):  # the run has just deleted it, or moved it aside
                total += self.file(step).stat().st_size
        return total

    def file(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"step_{step}.jsonl.gz"

    def read(self, step: int) -> Iterator[bytes]:
        """Yield the lines of a step, up to where its file is torn.

        Raises:
            OSError: If the file is there and cannot be read.
        """
        # Missing, torn, or not gzip from some byte on. Nothing else: `append` would replace a file that it cannot read.
        with (
            suppress(FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error),
            gzip.open(self.file(step)) as lines,
        ):
            yield from lines

    def append(self, step: int, lines: Iterable[bytes]) -> None:
        """Add lines, each with its line break, to a step.

        Raises:
            OSError: If they cannot be written; the file is as it was then.
        """
        # The present lines are compressed again: after a torn end a reader would not find what follows.
        content = b"".join((*(line for line in self.read(step) if line.endswith(b"\n")), *lines))
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.file(step)
        aside = file.with_name(f"{file.name}.part")
        try:
            aside.write_bytes(gzip.compress(content, _LEVEL, mtime=0))
            os.replace(aside, file)
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def keep(self, most: int | None) -> None:
        """Delete the oldest files, so that at most ``most`` are left; None keeps all."""
        for step in self.steps()[:-most] if most else ():
            self.file(step).unlink(missing_ok=True)

    def rewind(self, step: int) -> None:
        """Move the files after ``step``, from which a run continues, into a folder with a time stamp."""
        later = [found for found in self.steps() if found > step]
        if not later:
            return
        aside = dated(self.folder)
        aside.mkdir(exist_ok=True)
        for found in later:
            self.file(found).rename(aside / self.file(found).name)
