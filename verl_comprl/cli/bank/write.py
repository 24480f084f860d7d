"""Bank commands that change a bank: import, delete, quarantine, release, reembed.

Owns confirmation and reports. A bank that a run has open is refused, by the lock of its folder or by its lease on the
server.
"""

import argparse
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from verl_comprl.cli.bank.embedder import load_embedder
from verl_comprl.cli.bank.output import print_entries
from verl_comprl.cli.bank.read import Command, find_entry
from verl_comprl.cli.bank.source import bank_config, opened, stored_embedding
from verl_comprl.experience import Experience, ExperienceBank
from verl_comprl.experience.embedding.base import embedding_difference
from verl_comprl.experience.embedding.none import NoEmbedder
from verl_comprl.experience.transfer.query_language import parse_where
from verl_comprl.experience.transfer.snapshot import read_snapshot, snapshot_folder
from verl_comprl.experience.updates.quality import is_by_hand
from verl_comprl.experience.updates.sanitize import one_line
from verl_comprl.manager.kept_quarantines import KeptQuarantines

_SHOWN = 10
_LONGEST = 262_144
"""Characters of an imported title or content, which its run may have allowed to be longer than the defaults. No answer
of an extractor has more."""


async def _import(options: argparse.Namespace) -> int:
    if (options.embedder or options.embedder_url) and not options.reembed:
        raise ValueError("--embedder is only for --reembed; without it the snapshot's own vectors are used")
    folder = snapshot_folder(options.snapshot)
    limits = {"max_title_chars": _LONGEST, "max_content_chars": _LONGEST}
    config, embedding = bank_config(options).model_copy(update=limits), read_snapshot(folder, None).embedding
    own = await stored_embedding(config)
    if options.reembed:
        embedder = await load_embedder(options, own or embedding)
    elif own and (difference := embedding_difference(embedding, own)):
        raise ValueError(
            f"the snapshot was made with another embedder ({difference}); --reembed embeds its texts again"
        )
    else:
        embedder = NoEmbedder(embedding)
    async with opened(config, embedder) as bank:
        report = await bank.add_snapshot(folder, reembed=options.reembed)
        print(f"added {report.added} entries, skipped {report.skipped} and rejected {report.rejected}; now {len(bank)}")
        if report.replaced:
            print(
                f"left out {report.replaced} entries under ids that were replaced; "
                "whether these had other texts cannot be told"
            )
        if report.superseded:
            print(f"{report.superseded} entries of the bank are older versions of imported ones; they are kept")
    if report.added:
        tell_of_run(options, "what was imported is saved aside")
    return 0


async def _reembed(options: argparse.Namespace) -> int:
    async with opened(bank_config(options)) as bank:
        embedder = await load_embedder(options, bank.embedding)
        await bank.reembed(embedder)
        print(f"embedded {len(bank)} entries with {embedder.identity['model']}")
    return 0


async def _delete(options: argparse.Namespace) -> int:
    async def delete(bank: ExperienceBank, ids: list[str]) -> None:
        await bank.delete(ids)
        tell_of_run(options, "what was deleted is back, as long as it is not quarantined instead")

    if options.id and not options.where and not options.dry_run:
        async with opened(bank_config(options)) as bank:
            broken = [id for id in options.id if id in bank.unreadable]
            options.id = [id for id in options.id if id not in broken]
            for prefix in options.id:  # a wrong one is refused before anything is deleted
                find_entry(bank.entries(), prefix)
            if broken and not (options.yes or _confirmed(f"delete {len(broken)} entries that cannot be read")):
                print("nothing was changed")
                return 0
            if broken:
                print(f"deleted {await bank.delete(broken)} entries that could not be read")
                if not options.id:
                    return 0
    return await _change(options, "delete", lambda _: True, delete)


async def _quarantine(options: argparse.Namespace) -> int:
    async def quarantine(bank: ExperienceBank, ids: list[str]) -> None:
        await bank.quarantine(ids, options.reason)
        _note(options, bank, ids)

    if not is_by_hand(one_line(options.reason)):  # empty, or as a run says it, which does not keep its own
        raise ValueError(f"--reason {options.reason!r} must say why, in other words than a run's own reasons")
    return await _change(options, "quarantine", lambda entry: not entry.quarantined, quarantine)


async def _release(options: argparse.Namespace) -> int:
    async def release(bank: ExperienceBank, ids: list[str]) -> None:
        await bank.release(ids)
        _note(options, bank, ids)
        tell_of_run(options, "what the checkpoint has quarantined is so again")

    return await _change(options, "release", lambda entry: bool(entry.quarantined), release)


async def _change(
    options: argparse.Namespace,
    verb: str,
    applies: Callable[[Experience], bool],
    change: Callable[[ExperienceBank, list[str]], Awaitable[None]],
) -> int:
    """Show the selected entries that the change applies to, ask for confirmation, and make the change."""
    if not options.where and not options.id:
        raise ValueError(f"{verb} needs --where or --id to select entries")
    meets = parse_where(options.where)
    async with opened(bank_config(options), read_only=options.dry_run) as bank:
        entries = bank.entries()
        named = [find_entry(entries, prefix) for prefix in options.id] if options.id else entries
        chosen = [entry for entry in dict.fromkeys(named) if meets(entry) and applies(entry)]
        print_entries(chosen[:_SHOWN])
        if len(chosen) > _SHOWN:
            print(f"the first {_SHOWN} of these {len(chosen)} entries are shown")
        what = f"{verb} {len(chosen)} of {len(entries)} entries"
        if options.dry_run or not chosen:
            print(f"would {what}")
        elif options.yes or _confirmed(what):
            await change(bank, [entry.id for entry in chosen])
            print(f"{what}: done")
        else:
            print("nothing was changed")
    return 0


def tell_of_run(options: argparse.Namespace, what: str) -> None:
    """Say what becomes of a change if the bank is that of a run which can go on."""
    if run := _run(options):
        print(f"note: if the run in {run} goes on, it has the bank of its checkpoint again: {what}")


def _note(options: argparse.Namespace, bank: ExperienceBank, ids: list[str]) -> None:
    """Note for the run what is quarantined by hand now: the entries may leave the bank before it goes on."""
    if run := _run(options):
        KeptQuarantines(run).note([entry for id in ids if (entry := bank.get(id))])


def _run(options: argparse.Namespace) -> Path | None:
    """Return the folder of the bank's run if it has one which can go on."""
    path = Path(options.path) if options.path else None
    runs = (path.absolute().parent, path.resolve().parent) if path else ()  # the bank, or its run, may be a link
    return next((run.resolve() for run in runs if any(run.glob("global_step_*"))), None)


def _confirmed(what: str) -> bool:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's handler would not interrupt input()
    try:
        return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        raise ValueError(
            "cannot ask for confirmation without an input, so nothing was changed; --yes skips the question"
        ) from None
    except KeyboardInterrupt:
        print()
        return False
    finally:
        signal.signal(signal.SIGINT, handler)


COMMANDS: dict[str, Command] = {
    "import": _import,
    "delete": _delete,
    "quarantine": _quarantine,
    "release": _release,
    "reembed": _reembed,
}
