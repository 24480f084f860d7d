"""Reads what belongs to checkpoints on a disk that may fail for moments.

A file that is not there, or has another content, is proof that a checkpoint is torn. A network file system that does
not answer, rights that are missing or a process without memory or file handles prove nothing: what cannot be read now
is tried again for some seconds, and is then an error, not a damage.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

from verl_comprl import files

T = TypeVar("T")


class UnreadableCheckpoint(OSError):
    """A file of a checkpoint cannot be read at present; the checkpoint may be whole."""


def patiently(path: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` returns, which is called again (:func:`verl_comprl.files.patiently`).

    Args:
        path: What is read, where the error does not say it.
        read: Must begin anew each time.

    Raises:
        UnreadableCheckpoint: If it cannot be read in the end.
        OSError: One of :data:`verl_comprl.files.GONE`, at once.
    """
    try:
        return files.patiently(read)
    except files.GONE:
        raise
    except (OSError, MemoryError) as error:
        file = getattr(error, "filename", None) or path
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableCheckpoint(f"{file} cannot be read at present ({why}); try again when it can") from error


def ends_as_written(path: Path) -> bool:
    """Return whether a file of PyTorch has its end, where the directory of its format is.

    Raises:
        OSError: If it cannot be read at present.
    """
    with path.open("rb") as opened:
        file = _RememberingFile(opened, path)
        ends = zipfile.is_zipfile(file)
        file.raise_failure()
        return ends


def damage_of_torch_file(path: Path) -> str | None:
    """Return what is damaged in a file of PyTorch, all of which is compared with its checksums; None if nothing is.

    Raises:
        OSError: If it cannot be read at present.
        MemoryError: Likewise.
    """
    with path.open("rb") as opened:
        file = _RememberingFile(opened, path)
        try:
            with zipfile.ZipFile(file) as archive:
                wrong = archive.testzip()
            reason = wrong and f"{wrong} does not have its checksum"
        except MemoryError:
            raise
        except Exception as error:  # whatever damaged bytes lead the reader to
            reason = str(error) or type(error).__name__
        file.raise_failure()
        return reason


class _RememberingFile:
    """A file that remembers what kept it from being read: ``zipfile`` takes that for damage in some places."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._read, self._path = file.read, path
        self._failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._read(size)
        except OSError as error:
            error.filename = self._path  # which an error of reading lacks
            self._failure = error
            raise

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
