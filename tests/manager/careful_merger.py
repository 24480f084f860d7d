"""An extractor by rule that does what the merge prompt asks, and knows nothing but the text of the prompt.

It reads entries and records out of the prompt, tells near-copies and contradictions by their words, and answers in the
prompt's format. What it cannot find in the prompt, it cannot use: if it decides wrongly, the prompt lacks something.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

OPERATIONS = ("retain", "merge", "discard")
_ENTRY = re.compile(r"^(\d+)\. \((tasks: [^\n]*)\)\n", re.MULTILINE)
_READ = re.compile(
    r"(?:(?P<task>[^;:]+): )?(?:used (?P<used>\d+) times?)?(?: and )?(?:read in (?P<asked>\d+) answers?)?"
    r"(?:, (?P<success>\d+)% success)?(?: \((?P<without>\d+)% without\))?"
)
_REFUSALS = {"never", "not", "avoid", "don't"}
_FILLERS = {"a", "an", "and", "at", "before", "by", "every", "in", "is", "it", "of", "on", "once", "that", "the", "to"}
_FILLERS |= {"when", "you", "your", "always"}
_ALIKE = 0.55
"""Share of common words from which two entries speak of the same thing."""
_PROVEN = 4.0
"""Episodes below which a record proves nothing; the prompt says that a few uses prove little."""


@dataclass(frozen=True)
class Listed:
    """An entry as a merge prompt lists it."""

    index: int
    tasks: tuple[str, ...]
    age: int
    episodes: float
    """Uses, and half of the answers."""
    gain: float
    """Success above that without experience (above 50 % where that is not known), pulled to 0 if there are few uses."""
    text: str

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def content(self) -> str:
        return self.text.partition("\n")[2]

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z']+", self.text.lower())) - _FILLERS

    @property
    def topic(self) -> frozenset[str]:
        return self.words - _REFUSALS

    @property
    def refuses(self) -> bool:
        return bool(self.words & _REFUSALS)


def read_entries(prompt: str) -> list[Listed]:
    """Return the entries that a merge prompt lists, in its order."""
    body = prompt.partition("Entries:\n")[2]
    heads = list(_ENTRY.finditer(body))
    ends = [head.start() for head in heads[1:]] + [len(body)]
    return [_read_entry(head, body[head.end() : end].strip()) for head, end in zip(heads, ends, strict=True)]


def _read_entry(head: re.Match[str], text: str) -> Listed:
    tasks, age, *usage = head[2].split("; ")
    episodes = gained = 0.0
    for part in usage:
        read = _READ.fullmatch(part)
        if read is None or not (read["used"] or read["asked"]):
            assert part == "not used yet", f"a record that the prompt does not explain: {part!r}"
            continue
        count = int(read["used"] or 0) + 0.5 * int(read["asked"] or 0)
        episodes += count
        gained += count * (int(read["success"]) - int(read["without"] or 50)) / 100
    known = re.findall(r"\d+", age)
    return Listed(
        index=int(head[1]),
        tasks=tuple(tasks.removeprefix("tasks: ").split(", ")),
        age=int(known[0]),
        episodes=episodes,
        gain=gained / (episodes + 2),
        text=text,
    )


def merge_carefully(prompt: str) -> str:
    """Answer a merge prompt as it asks: near-copies become one, of contradicting entries the record decides."""
    offered = re.findall(r'{"operation": "(\w+)"', prompt.partition("Entries:\n")[0])
    assert set(offered) == set(OPERATIONS), f"the prompt offers {offered}"
    operations = list(_operations(read_entries(prompt)))
    return f"Each entry is compared with each.\n<answer>{json.dumps(operations)}</answer>"


def _operations(entries: Sequence[Listed]) -> Iterator[dict[str, Any]]:
    left = {entry.index: entry for entry in entries}
    for first, second in combinations(entries, 2):
        common = len(first.topic & second.topic) / len(first.topic | second.topic)
        if first.index not in left or second.index not in left or common < _ALIKE:
            continue
        better, worse = sorted((first, second), key=lambda entry: -entry.gain)
        ids = [first.index, second.index]
        if first.refuses == second.refuses:
            yield {"operation": "merge", "ids": ids, "title": better.title, "content": better.content}
        elif set(first.tasks).isdisjoint(second.tasks) and worse.gain > 0:
            content = " ".join(f"In {', '.join(entry.tasks)}: {entry.content}" for entry in (first, second))
            yield {"operation": "merge", "ids": ids, "title": better.title, "content": content}
        elif better.episodes >= _PROVEN and better.gain > worse.gain:
            yield {"operation": "discard", "ids": [worse.index]}
            yield {"operation": "retain", "ids": [better.index]}
        else:  # no record speaks for either
            continue
        del left[first.index], left[second.index]
    yield from ({"operation": "retain", "ids": [index]} for index in left)
