"""``comprl bank distill``: builds a bank from episodes that were played already, without training."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from verl_comprl.cli.bank.embedder import load_embedder
from verl_comprl.cli.bank.endpoint import connected
from verl_comprl.cli.bank.source import bank_config, opened, stored_embedding
from verl_comprl.cli.bank.write import tell_of_run
from verl_comprl.display.printable import printable
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.offline import OfflineDistillation, set_aside_foreign
from verl_comprl.extractor.trajectories import read_episodes

_JOURNAL = "distilled.jsonl"


async def distill(options: argparse.Namespace) -> int:
    """Distil the episodes of the file; exit code 1 if some failed, or were answered with what cannot be read."""
    config = bank_config(options)
    episodes = read_episodes(options.episodes)
    if not episodes:
        raise ValueError(f"--episodes {options.episodes} has no episode to distil")
    identity = await stored_embedding(config)
    if identity is None and options.embedder is None:
        options.embedder = "builtin"
    total = len(episodes)

    def progress(counts: Counter[str]) -> None:
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{sum(counts.values())} of {total} episodes: {_shown(counts)}", end=end, file=sys.stderr, flush=True)

    # In this order: before the endpoint has answered, nothing is made.
    async with connected(options) as calls, opened(config, await load_embedder(options, identity or {})) as bank:
        journal = _journal(config)
        if aside := set_aside_foreign(journal, bank):
            print(f"the bank is empty, so {journal} is of another one: renamed to {aside}", file=sys.stderr)
        work = OfflineDistillation(
            bank,
            calls,
            journal,
            limits=config,
            workers=options.workers,
            list_nearest=options.list_nearest,
            progress=progress,
        )
        await work.run(episodes)
        counts, size = work.counts, len(bank)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{total} episodes: {_shown(counts)}; the bank has {size} entries")
    if counts["written"]:
        tell_of_run(options, "what was distilled is saved aside")
    missing = total - sum(counts.values()) + counts["failed"]
    if missing:
        print(
            f"{missing} episodes are not distilled, last failure: {printable(work.last_failure)}; "
            "run the same command again to resume",
            file=sys.stderr,
        )
    if counts["unreadable"]:
        print(
            f"{counts['unreadable']} of the answers cannot be read; run the same command again to ask again, "
            f"with a larger --max-tokens than {options.max_tokens} or another --model if there are many",
            file=sys.stderr,
        )
    return 1 if missing or counts["unreadable"] else 0


def _journal(config: BankConfig) -> Path:
    """Return the file that names what is done, next to a server's bank in the present folder.

    Raises:
        ValueError: If it is a link or no file: the folder of a bank may be somebody else's.
    """
    if config.url:
        return Path(f"{config.collection}.{_JOURNAL}")
    journal = Path(config.path) / _JOURNAL
    if journal.is_symlink() or (journal.exists() and not journal.is_file()):
        raise ValueError(f"{journal} is a link or no file; remove it")
    return journal


def _shown(counts: Counter[str]) -> str:
    words = {
        "done": "done before",
        "written": "gave experience",
        "return": "had nothing new",
        "unreadable": "gave an answer that cannot be read",
        "failed": "failed",
    }
    return ", ".join(f"{counts[name]} {text}" for name, text in words.items() if counts[name]) or "none yet"
