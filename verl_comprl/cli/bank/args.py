"""``comprl bank``: look into an experience bank, move it, and change it by hand.

Owns the arguments. What the commands do is ``bank_reading`` and ``bank_writing``, loaded only when one is run.
"""

import argparse
import asyncio
from pathlib import Path

_WHERE = "conditions that must all hold, such as 'uses>=5' 'task!=minihack' 'title~door'; goes last"


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command with its own sub-commands."""
    parser = commands.add_parser("bank", help="look into an experience bank, move it, change it")
    actions = parser.add_subparsers(dest="action", required=True)
    target = argparse.ArgumentParser(add_help=False)
    place = target.add_mutually_exclusive_group(required=True)
    place.add_argument("--path", help="folder of an embedded bank")
    place.add_argument("--url", help="Qdrant server; its API key is taken from QDRANT_API_KEY")
    target.add_argument("--collection", help="name of the bank on the server")

    def add(name: str, help: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=help, parents=[target])

    stats = add("stats", "numbers of the whole bank")
    stats.add_argument("--json", action="store_true", help="for machines")

    listing = add("list", "its entries, oldest first")
    _add_where(listing)
    listing.add_argument("--sort", metavar="FIELD", help="smallest first; entries without a value last")
    listing.add_argument("--reverse", action="store_true", help="the other way round")
    _add_limit(listing)

    show = add("show", "one entry with its record and its lineage")
    show.add_argument("id", help="id of the entry, or the beginning of it")
    show.add_argument("--json", action="store_true", help="for machines")

    search = add("search", "the entries most similar to a text")
    search.add_argument("query")
    _add_where(search)
    search.add_argument("--task", help="short for --where task=…")
    _add_limit(search)
    _add_embedder(search, "the one the bank was built with")

    export = add("export", "write a snapshot, which also is a Hugging Face dataset folder")
    export.add_argument("folder", type=Path)
    _add_where(export)

    importing = add("import", "add what is missing of a snapshot, to a bank that is created if needed")
    importing.add_argument("snapshot", help="folder, or hf://datasets/<user>/<name>")
    importing.add_argument("--reembed", action="store_true", help="embed its texts anew, if another embedder made it")
    _add_embedder(importing, "the one the bank was built with")

    for name, help in (
        ("delete", "remove entries"),
        ("quarantine", "keep entries from being retrieved"),
        ("release", "let quarantined entries be retrieved again"),
    ):
        action = add(name, help)
        _add_where(action)
        action.add_argument("--id", nargs="+", action="extend", default=[], help="ids, or beginnings of them")
        action.add_argument("--dry-run", action="store_true", help="only say what would be done")
        action.add_argument("--yes", action="store_true", help="do not ask")
        if name == "quarantine":
            action.add_argument("--reason", default="by hand", help="kept with the entries (default: %(default)s)")

    add("verify", "compare what a run serves with what is stored; exit code 1 if something is wrong")

    reembed = add("reembed", "give every entry a vector of another embedder")
    _add_embedder(reembed)
    parser.set_defaults(run=run)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", nargs="+", action="extend", default=[], metavar="CONDITION", help=_WHERE)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_count, default=20, help="entries to print; 0 for all (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for machines")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {number}")
    return number


def _add_embedder(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    help = "sentence-transformers model, folder of one, or builtin"
    parser.add_argument(
        "--embedder",
        required=default is None,
        metavar="MODEL",
        help=f"{help} (default: {default})" if default else help,
    )
    parser.add_argument("--embedder-url", metavar="URL", help="OpenAI-compatible endpoint that serves MODEL")
    parser.add_argument("--query-prompt", help="put before every query (default: what the bank was built with)")
    parser.add_argument("--document-prompt", help="put before every entry (default: likewise)")


def run(options: argparse.Namespace) -> int:
    """Run the sub-command of ``bank``."""
    from verl_comprl.cli.bank import read as bank_reading
    from verl_comprl.cli.bank import write as bank_writing
    from verl_comprl.experience import StoreError

    commands = bank_reading.COMMANDS | bank_writing.COMMANDS
    try:
        return asyncio.run(commands[options.action](options))
    except StoreError as error:
        raise ValueError(str(error)) from error
