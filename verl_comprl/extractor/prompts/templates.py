"""Prompt templates, the text files in this package, and what their structure looks like to a reader."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from string import Template

_FOLDER = files("verl_comprl.extractor.prompts")


def fill(name: str, **values: object) -> str:
    """Return the template of ``{name}.txt`` with its placeholders filled in."""
    return _template(name).substitute(values)


@cache
def _template(name: str) -> Template:
    return Template(_FOLDER.joinpath(f"{name}.txt").read_text(encoding="utf-8").strip())


def headings() -> set[str]:
    """Return a pattern of lower-case text for each line of ours that can stand between untrusted texts.

    That is every line with words of its own in a template that is no part of a system message: the words up to the
    first placeholder that is not a number, with anything but letters and digits between them.
    """
    return set(filter(None, map(_heading, _lines())))


def _lines() -> Iterator[str]:
    for file in _FOLDER.iterdir():
        if file.name.endswith(".txt") and ".system." not in file.name:
            yield from file.read_text(encoding="utf-8").splitlines()


def _heading(line: str) -> str | None:
    own = re.match(r"(?:\$number|[^$])*", line)
    words = re.findall(r"\$number|[a-z]+", own[0].lower() if own else "")
    if set(words) <= {"$number"}:
        return None
    return "[^a-z0-9]*".join("[0-9]++" if word == "$number" else word for word in words)
