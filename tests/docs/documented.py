"""The commands and programs of README and docs, as a reader would type them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
PLACEHOLDERS = {"key=value", "…", "...", "COMMAND"}
_LOOP = re.compile(r"^(for|while) .*?^done", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`((?:comprl |make |python -m |bash recipes/run\.sh |pip install )[^`]+)`")


@dataclass(frozen=True)
class Command:
    """A command and where it stands.

    Attributes:
        page: Path of the page, relative to the repository.
        words: Program and arguments, without variables before them and without placeholders.
        in_block: Whether it stands in a block of its own and not within a sentence.
    """

    page: str
    words: tuple[str, ...]
    in_block: bool

    def __str__(self) -> str:
        """Return a name for a test."""
        return f"{self.page}: {' '.join(self.words)[:90]}"


class Page:
    """A Markdown page of the repository."""

    def __init__(self, path: Path) -> None:
        """Read the page."""
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """Return the fenced blocks of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)

    def scripts(self) -> list[str]:
        """Return the blocks of shell commands that hold together: a loop is no list of commands, one a line."""
        return [block for block in self.blocks("bash") if _LOOP.search(block)]

    @cached_property
    def commands(self) -> list[Command]:
        """All commands of the page but those of its scripts."""
        prose = re.sub(r"^```.*?^```", "", self.text, flags=re.DOTALL | re.MULTILINE)
        inline = [" ".join(code.split()) for code in _INLINE.findall(prose)]
        lists = [block for block in self.blocks("bash") if block not in self.scripts()]
        found = {words: True for block in lists for words in _words(block)}
        found |= {words: False for code in inline for words in _words(code) if words not in found}
        return [Command(self.name, words, in_block) for words, in_block in found.items()]


def _words(script: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of a script; a line of settings alone continues one and is a command too."""
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", script).splitlines():
        line = re.sub(r"\[(-[^\]]*)\]", r"\1", line)  # [--bank SNAPSHOT] is optional
        given = shlex.split(Template(line).safe_substitute(variables), comments=True)
        while given and (given[0] == "export" or _sets_variable(given)):
            name, _, value = given.pop(0).partition("=")
            variables[name] = value
        words = tuple(word for word in given if word not in PLACEHOLDERS)
        if words:
            yield words


def _sets_variable(words: list[str]) -> bool:
    """Tell ``RAY_ADDRESS=local python`` and ``env=guess`` from settings, ``arm=baseline comprl.bank.capacity=5``."""
    name, equals, _ = words[0].partition("=")
    return bool(equals) and name.isidentifier() and (name.isupper() or len(words) == 1)


def pages() -> list[Page]:
    """Return all pages."""
    return [Page(path) for path in PAGES if path.exists()]
