"""Records as lines of JSON."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

Record = dict[str, Any]


def encode(record: Mapping[str, Any] | str) -> bytes:
    """Return ``record`` as JSON; what UTF-8 cannot encode is escaped, and integers of more than 64 bits are texts."""
    try:
        return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY, default=str)
    except orjson.JSONEncodeError:  # an environment may show bytes of a file as lone surrogates
        return orjson.dumps(_clean(record), option=orjson.OPT_SERIALIZE_NUMPY, default=str)


def decode(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the objects of lines; what is not one is left out: a process was killed while it wrote it."""
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record


def append_lines(file: Path, lines: bytes) -> None:
    """Append ``lines``, each with its line break, to a file; all of them or nothing.

    Raises:
        OSError: If they cannot be written; the file is as it was then.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a process was killed while it wrote the last one
            lines = b"\n" + lines
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def _clean(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
