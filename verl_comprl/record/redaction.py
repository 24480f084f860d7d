"""Removal of the secrets of this process's environment from text and from records."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson

from verl_comprl.record.lines import encode

REDACTED = "***"
"""In place of a secret."""

SHORTEST_SECRET = 8
"""Characters; shorter values are words that occur in any text."""

MOST_SECRETS = 100
"""That are remembered of a process, besides those of now: some environments make a key for every session."""

REDACT = "COMPRL_REDACT"
"""Variable with the names of others whose values are secrets, whatever they are called; separated by commas."""

_SECRET_NAME = re.compile("KEY|TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PASS$|_AUTH$|CREDENTIAL", re.IGNORECASE)
_PLACE_NAME = re.compile("_(PATH|FILE|DIR)$", re.IGNORECASE)
"""Says where a secret lies, which is none: a run's settings may have the same path."""


def is_secret_name(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable is called as one with a secret, or the environment names it as one."""
    called = _SECRET_NAME.search(name) and not _PLACE_NAME.search(name)
    return bool(called) or name in re.split(r"[\s,]+", environment.get(REDACT, ""))


def is_secret(name: str, value: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the value of a variable is a secret."""
    return len(value) >= SHORTEST_SECRET and is_secret_name(name, environment)


def redact_also(name: str) -> None:
    """Count a variable as one with a secret, here and in processes that are started with this one's variables."""
    if name and not is_secret_name(name):
        os.environ[REDACT] = f"{os.environ.get(REDACT, '')},{name}".lstrip(",")


def text_redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the environment's secrets in plain text with ``***``.

    Of this process's variables also those that were there at an earlier call: an environment that plays in a thread may
    set and remove them, and what it showed is written later. It finds secrets in JSON and in Python's ``repr`` too, and
    single lines of a secret: output is logged line by line, and a printed key often lacks the line break at its end.
    """
    return _text_redactor(_secrets(environment))


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[bytes], bytes]:
    """Return a function that replaces the secrets of :func:`text_redactor` in the texts of a record with ``***``.

    The record is given and returned as a line of JSON. Names and numbers stay, whatever a secret looks like: only the
    texts come from elsewhere.
    """
    return _redactor(_secrets(environment))


_seen: frozenset[str] = frozenset()
"""Secrets that this process's variables have had."""


def _secrets(environment: Mapping[str, str]) -> frozenset[str]:
    global _seen
    # Not of items(): an environment that plays in a thread may remove a variable meanwhile, which would raise there.
    variables = ((name, value) for name in list(environment) if (value := environment.get(name)) is not None)
    found = _values(frozenset(variables))
    if environment is not os.environ:
        return found
    if not found <= _seen:
        _seen = found | frozenset(islice(_seen - found, max(0, MOST_SECRETS - len(found))))
    return _seen


# Every episode asks for a redactor, and looking for secrets in all variables takes ten times as long as comparing them.
@lru_cache(maxsize=2)
def _values(variables: frozenset[tuple[str, str]]) -> frozenset[str]:
    environment = dict(variables)
    return frozenset(value for name, value in variables if is_secret(name, value, environment))


@lru_cache(maxsize=2)
def _text_redactor(secrets: frozenset[str]) -> Callable[[str], str]:
    spellings = _spellings(secrets)

    def redact(text: str) -> str:
        for spelling in spellings:
            text = text.replace(spelling, REDACTED)
        return text

    return redact


@lru_cache(maxsize=2)
def _redactor(secrets: frozenset[str]) -> Callable[[bytes], bytes]:
    redact = _text_redactor(secrets)
    # JSON spells each character by itself, so a line without any of these has no text with a secret. Looking for them
    # is much faster than reading the line, and nearly all lines have none.
    signs = [encode(spelling)[1:-1] for spelling in _spellings(secrets)]

    def redact_line(line: bytes) -> bytes:
        if not any(sign in line for sign in signs):
            return line
        return encode(_with_texts(orjson.loads(line), redact))

    return redact_line


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    return value


def _spellings(secrets: Iterable[str]) -> list[str]:
    """Return all that stands for a secret, longest first: one may contain another."""
    found = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    for text in _parts(value):
        yield text
        yield repr(text)[1:-1]
        for written in (encode(text).decode()[1:-1], json.dumps(text)[1:-1]):
            yield written
            yield written.replace("/", "\\/")  # as PHP does


def _parts(value: str) -> Iterable[str]:
    return {value, value.strip(), *(line.strip() for line in value.splitlines())}
