"""Records as lines of JSON, without the secrets of this process's environment."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

Record = dict[str, Any]

SHORTEST_SECRET = 8
"""Characters; shorter values are words that occur in any text."""

SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|CREDENTIAL", re.IGNORECASE)
"""Found in the names of variables whose values are secrets."""


def encode(record: Mapping[str, Any]) -> bytes:
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


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[bytes], bytes]:
    """Return a function that replaces the environment's secrets in a line with ``***``."""
    secrets = [orjson.dumps(_clean(value))[1:-1] for value in _secrets(environment)]

    def redact(line: bytes) -> bytes:
        for secret in secrets:
            line = line.replace(secret, b"***")
        return line

    return redact


def text_redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the environment's secrets in plain text with ``***``.

    Also where they are part of JSON or of Python's ``repr``, and single lines of them: output is logged line by line.
    """
    secrets = _longest_first(form for value in _secrets(environment) for form in _forms(value))

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are named like secrets, longest first: one may contain another."""
    return _longest_first(value for name, value in environment.items() if SECRET_NAME.search(name))


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if len(value) >= SHORTEST_SECRET}, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    for text in (value, *lines):
        yield text
        yield orjson.dumps(_clean(text)).decode()[1:-1]
        yield repr(text)[1:-1]


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
