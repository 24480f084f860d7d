"""Disk overflow of the distillation queue: first in, first out, with one file per text."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path


class Spill:
    """First-in first-out queue of keyed texts in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Start empty; delete an earlier process's files, since a resumed run restores requests from its checkpoint."""
        self._folder = folder
        self._files: deque[tuple[str, Path]] = deque()
        self._keys: set[str] = set()
        self._number = 0
        for path in folder.glob("*.json"):
            path.unlink()

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._files)

    def __contains__(self, key: str) -> bool:
        """Return whether the text of ``key`` is waiting."""
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        """Yield all texts, oldest first, without removing them."""
        for _, path in self._files:
            yield path.read_text("utf-8")

    def put(self, key: str, text: str) -> None:
        """Write a text.

        Raises:
            OSError: If the text cannot be written; it is not added then.
        """
        path = self._folder / f"{self._number:012d}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._number += 1
        self._files.append((key, path))
        self._keys.add(key)

    def take(self) -> str:
        """Remove the oldest text and return it.

        Raises:
            OSError: If the text cannot be read; it is lost then.
        """
        key, path = self._files.popleft()
        self._keys.discard(key)
        text = path.read_text("utf-8")
        path.unlink()
        return text
