"""Records as lines of JSON, without the secrets of this process's environment."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

Record = dict[str, Any]

SHORTEST_SECRET = 8
"""Characters; shorter values are words that occur in any text."""

_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


def encode(record: Mapping[str, Any]) -> bytes:
    """Return ``record`` as JSON; what UTF-8 cannot encode is escaped."""
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


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[bytes], bytes]:
    """Return a function that replaces the environment's secrets in a line with ``***``."""
    values = {
        value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET
    }
    # Longest first: a secret may contain another one.
    secrets = [orjson.dumps(_clean(value))[1:-1] for value in sorted(values, key=len, reverse=True)]

    def redact(line: bytes) -> bytes:
        for secret in secrets:
            line = line.replace(secret, b"***")
        return line

    return redact


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
