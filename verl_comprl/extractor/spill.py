"""Texts that wait on disk for their turn, first in, first out; one file each, so nothing is ever half consumed."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path


class Spill:
    """A queue of keyed texts in a folder, which belongs to it alone."""

    def __init__(self, folder: Path) -> None:
        """Start empty: what an earlier process left belongs to a state that is restored from elsewhere, or to none."""
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
        """Tell whether the text of ``key`` waits here."""
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        """Read all texts, the next first, without removing them."""
        for _, path in self._files:
            yield path.read_text("utf-8")

    def put(self, key: str, text: str) -> None:
        """Write a text.

        Raises:
            OSError: If it cannot be written; it is not in the spill then.
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
            OSError: If it cannot be read; it is gone.
        """
        key, path = self._files.popleft()
        self._keys.discard(key)
        text = path.read_text("utf-8")
        path.unlink()
        return text
