"""File of the distillations that were given up, and what a checkpoint notes of it."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from verl_comprl.files import dated, write_atomically
from verl_comprl.record.lines import append_lines, decode

DEAD_LETTERS = "dead_letters.jsonl"


class DeadLetters:
    """A JSON object per line. All methods raise an OSError if the disk fails."""

    def __init__(self, folder: Path) -> None:
        """Use the file in the queue's ``folder``; neither has to be there."""
        self.path = folder / DEAD_LETTERS

    def add(self, letter: bytes) -> None:
        """Append an encoded letter."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self.path, letter + b"\n")

    def ids(self) -> set[str]:
        """Return the ids of their requests; damaged lines have none."""
        if not self.path.exists():
            return set()
        with self.path.open("rb") as letters:
            requests = [letter.get("request") for letter in decode(letters)]
        ids = [request.get("id") for request in requests if isinstance(request, dict)]
        return {id for id in ids if isinstance(id, str)}

    def set_aside(self) -> None:
        """Begin without them; the file is kept with a time stamp."""
        if self.path.exists():
            self.path.rename(dated(self.path))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint notes, by which :meth:`take_back` knows those that are there now."""
        letters = self._read()
        return {"bytes": len(letters), "sha256": hashlib.sha256(letters).hexdigest()}

    def take_back(self, state: dict[str, Any]) -> None:
        """Drop the letters that were written later: their episodes wait again, or are played again.

        Those of the checkpoint are known by their content, wherever the folder of the run is now. A file that does not
        begin with them has others' only.
        """
        letters = self._read()
        kept = letters[: state["bytes"]]
        digest = hashlib.sha256(kept).hexdigest()
        if state.get("sha256", digest) != digest:  # earlier checkpoints have none
            kept = b""
        if len(kept) < len(letters):
            shutil.copyfile(self.path, dated(self.path))
            write_atomically(self.path, kept)

    def _read(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""
