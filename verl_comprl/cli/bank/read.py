"""Bank commands that change nothing: stats, list, show, search, export, verify.

Owns their output. Each works on a bank opened here and on one served by a run's manager, see ``source``.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_comprl.cli.bank.embedder import load_embedder
from verl_comprl.cli.bank.interface import BankSource, SearchSource
from verl_comprl.cli.bank.output import entry_fields, format_time, print_entries, print_fields
from verl_comprl.cli.bank.source import bank_config, reading
from verl_comprl.display.printable import printable
from verl_comprl.experience import Experience, TaskUsage
from verl_comprl.experience.transfer.query_language import (
    FIELDS,
    Condition,
    field_value,
    parse_where,
    unknown_field,
)
from verl_comprl.experience.transfer.snapshot import read_snapshot, write_snapshot
from verl_comprl.nearest import did_you_mean

_OWN_LINES = ("title", "content", "parents", "ancestors")
"""Fields that `show` prints in another form, or not at all."""

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
ReadCommand = Callable[[BankSource, argparse.Namespace], Coroutine[Any, Any, int]]


def find_entry(entries: Iterable[Experience], prefix: str) -> Experience:
    """Return the only entry whose id starts with ``prefix``.

    Raises:
        ValueError: If there is none or more than one.
    """
    entries = list(entries)
    found = [entry for entry in entries if prefix and entry.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{len(found)} ids start with {prefix!r}: {', '.join(entry.id for entry in found[:3])}")
    children = [entry.id for entry in entries if any(prefix and id.startswith(prefix) for id in entry.parents)]
    raise ValueError(
        f"no entry has id {prefix!r}" + (f"; it was replaced by {', '.join(children)}" if children else "")
    )


async def _stats(source: BankSource, options: argparse.Namespace) -> int:
    summary = _summary(await source.entries()) | await source.statistics()
    if options.json:
        print(json.dumps(summary))
        return 0
    print_fields(summary)
    return 0


def _summary(entries: Sequence[Experience]) -> dict[str, Any]:
    uses = sum(entry.uses for entry in entries)
    steps = [entry.created_step for entry in entries]
    return {
        "size": len(entries),
        "quarantined": sum(bool(entry.quarantined) for entry in entries),
        "tasks": dict(Counter(task for entry in entries for task in entry.tasks).most_common()),
        "environments": dict(Counter(name for entry in entries for name in entry.environments).most_common()),
        "first_step": min(steps, default=None),
        "last_step": max(steps, default=None),
        "replacing_others": sum(bool(entry.parents) for entry in entries),
        "never_used": sum(not entry.uses for entry in entries),
        "uses": uses,
        "success_rate": sum(entry.successes for entry in entries) / uses if uses else None,
        "trainings": sum(entry.trainings for entry in entries),
    }


async def _list(source: BankSource, options: argparse.Namespace) -> int:
    meets = parse_where(options.where)
    entries = [entry for entry in await source.entries() if meets(entry)]
    if options.sort:
        entries = _sorted(entries, options.sort, options.reverse)
    elif options.reverse:
        entries.reverse()
    shown = entries[: options.limit or None]
    if options.json:
        for entry in shown:
            print(json.dumps(entry_fields(entry)))
    elif shown:
        print_entries(shown, sorted_by=options.sort or "")
    else:
        print("no entries" + (" meet the condition" if options.where else ""), file=sys.stderr)
    if len(shown) < len(entries):
        print(f"{len(shown)} of {len(entries)} entries shown; --limit 0 shows all", file=sys.stderr)
    return 0


def _sorted(entries: list[Experience], field: str, reverse: bool) -> list[Experience]:
    if field not in FIELDS:
        raise ValueError(f"--sort: {unknown_field(field)}")
    known = [entry for entry in entries if field_value(entry, field) is not None]
    unknown = [entry for entry in entries if field_value(entry, field) is None]
    return sorted(known, key=lambda entry: field_value(entry, field), reverse=reverse) + unknown


async def _show(source: BankSource, options: argparse.Namespace) -> int:
    entries = {entry.id: entry for entry in await source.entries()}
    entry = find_entry(entries.values(), options.id)
    children = [other.id for other in entries.values() if entry.id in other.parents]
    if options.json:
        print(json.dumps({**entry_fields(entry), "children": children}))
        return 0
    fields = {name: value for name, value in entry_fields(entry).items() if name not in _OWN_LINES}
    fields |= {name: format_time(fields[name]) for name in ("created_at", "last_retrieved_at")}
    fields |= {name: ", ".join(fields[name]) for name in ("tasks", "environments")}
    fields["usage"] = "; ".join(_usage(usage) for usage in entry.usage)
    fields["parents"] = ", ".join(id if id in entries else f"{id} (replaced)" for id in entry.parents)
    fields["children"] = ", ".join(children)
    print_fields(fields)
    print(f"\n{printable(entry.text)}")
    return 0


def _usage(usage: TaskUsage) -> str:
    text = f"{usage.task}: {usage.successes} of {usage.uses} successes"
    if usage.asked:
        text += f", {usage.asked_successes} of {usage.asked} through answers"
    if usage.compared:  # what retiring and merging go by
        rate, free = usage.compared_successes / usage.compared, usage.free_successes / usage.compared
        text += f", of {usage.compared:g} compared {rate:.0%} success ({free:.0%} without)"
    return text


async def _search(source: BankSource, options: argparse.Namespace) -> int:
    meets = _searched(options)
    there = any(map(meets, await source.entries()))  # otherwise ``reading`` has loaded no embedder
    hits = await matching_hits(source, options.query, options.limit, meets) if there else []
    if not hits:
        print(printable(f"nothing found{await unknown_task(source, options.task)}"), file=sys.stderr)
    elif options.json:
        for entry, score in hits:
            print(json.dumps({**entry_fields(entry), "score": score}))
    else:
        print_entries([entry for entry, _ in hits], [score for _, score in hits])
    return 0


def _searched(options: argparse.Namespace) -> Condition:
    return parse_where(options.where + ([] if options.task is None else [f"tasks={options.task}"]))


async def unknown_task(source: SearchSource, task: str | None) -> str:
    """Return the end of a line that says that no entry has the task; "" if one has."""
    if task is None:
        return ""
    known = {name for entry in await source.entries() for name in entry.tasks}
    return "" if task in known else f": no entry has the task {task}; {did_you_mean(task, known)}".rstrip("; ")


async def matching_hits(
    source: SearchSource, query: str, limit: int, meets: Condition
) -> list[tuple[Experience, float]]:
    """Return the ``limit`` best hits that meet the conditions, fetching more hits until there are enough."""
    asked = limit or max(1, len(await source.entries()))
    while True:
        hits = await source.search(query, asked)
        kept = [(entry, score) for entry, score in hits if meets(entry)]
        if len(hits) < asked or len(kept) >= (limit or len(kept)):
            return kept[: limit or None]
        asked *= 4


async def _export(source: BankSource, options: argparse.Namespace) -> int:
    folder = Path(os.path.realpath(options.folder))  # resolve() raises RuntimeError for links in a circle
    if not options.where:
        await source.snapshot(folder)
        count = len(read_snapshot(folder, None).entries)
    else:
        meets = parse_where(options.where)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            await source.snapshot(Path(scratch) / "all")
            entries, vectors, embedding = read_snapshot(Path(scratch) / "all", None)
        rows = [row for row, entry in enumerate(entries) if meets(entry)]
        write_snapshot(folder, [entries[row] for row in rows], vectors[rows], embedding)
        count = len(rows)
    print(f"exported {count} entries to {folder}")
    return 0


async def _verify(source: BankSource, _: argparse.Namespace) -> int:
    problems = await source.verify()
    for problem in problems:
        print(printable(problem))
    if not problems:
        print(f"{len(await source.entries())} entries, no problems found")
    return 1 if problems else 0


async def _read(command: ReadCommand, options: argparse.Namespace) -> int:
    embedder, wanted = None, None
    if command is _search:
        embedder, wanted = partial(load_embedder, options), _searched(options)
    async with reading(bank_config(options), embedder, wanted) as source:
        return await command(source, options)


COMMANDS: dict[str, Command] = {
    "stats": partial(_read, _stats),
    "list": partial(_read, _list),
    "show": partial(_read, _show),
    "search": partial(_read, _search),
    "export": partial(_read, _export),
    "verify": partial(_read, _verify),
}
