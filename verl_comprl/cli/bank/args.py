"""Command-line arguments of ``comprl bank`` and its sub-commands.

Owns the arguments. The commands are in the modules next to it, which are imported only when one runs.
"""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_comprl.cli.model_arguments import add_model
from verl_comprl.cli.numbers import count, positive

if TYPE_CHECKING:
    from verl_comprl.cli.bank.read import Command

_DESCRIPTION = (
    "Inspect, change, build and serve an experience bank. Name the bank by --path (the folder of an embedded bank) or "
    "by --url and --collection (a Qdrant server). While a training run has the bank open, stats, list, show, search, "
    "export and verify work; commands that change the bank are refused."
)
_WHERE = (
    "select the entries that meet all conditions, each written FIELD OPERATOR VALUE in quotes, such as 'uses>=5' "
    "'tasks!=minihack' 'title~door'; operators: = != < <= > >= and ~ (text contains, ignoring case); put this last"
)
_BUILT_WITH = "the one the bank was built with"


def _field_names(prefix: str, **_: Any) -> list[str]:
    """Return the fields of entries, for the shell's completion."""
    from verl_comprl.experience.transfer.query_language import FIELDS

    return [name for name in FIELDS if name.startswith(prefix)]


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command with its own sub-commands."""
    parser = commands.add_parser(
        "bank", help="inspect, change, build and serve an experience bank", description=_DESCRIPTION
    )
    actions = parser.add_subparsers(dest="action", required=True, title="commands", metavar="COMMAND")
    target = argparse.ArgumentParser(add_help=False)
    location = target.add_mutually_exclusive_group(required=True)
    location.add_argument("--path", help="folder of an embedded bank, such as RUN/bank")
    location.add_argument(
        "--url", help="Qdrant server, such as http://127.0.0.1:6333; its API key is read from QDRANT_API_KEY"
    )
    target.add_argument("--collection", help="name of the bank on the server; required with --url")

    def add(name: str, help: str, details: str = "") -> argparse.ArgumentParser:
        description = f"{help[0].upper()}{help[1:]}. {details}".strip()
        return actions.add_parser(name, help=help, description=description, parents=[target])

    stats = add(
        "stats",
        "print summary statistics of the bank",
        "For a folder that a training run has open, they include the run's counters since it opened the bank.",
    )
    stats.add_argument("--json", action="store_true", help="print one JSON object")

    listing = add("list", "list entries, oldest first")
    _add_where(listing)
    sort: Any = listing.add_argument(
        "--sort",
        metavar="FIELD",
        help="sort by a field, such as uses, success_rate or created_step: ascending, entries without a value last",
    )
    sort.completer = _field_names
    listing.add_argument("--reverse", action="store_true", help="reverse the order")
    _add_limit(listing)

    show = add("show", "show one entry with its text, counters and lineage")
    show.add_argument("id", help="id of the entry, or a unique prefix of it")
    show.add_argument("--json", action="store_true", help="print one JSON object")

    search = add(
        "search",
        "find the entries most similar to a text",
        "Ranks by similarity alone, without the penalties that training applies, and counts nothing. For a folder that "
        "a training run has open, the run's embedder is used.",
    )
    search.add_argument("query", help="text to search for")
    _add_where(search)
    search.add_argument("--task", help="same as --where tasks=TASK")
    _add_limit(search)
    _add_embedder(search, _BUILT_WITH)

    export = add(
        "export",
        "write the bank, or a selection of its entries, to a snapshot folder",
        "`comprl bank import` reads the folder; it is also a Hugging Face dataset.",
    )
    export.add_argument("folder", type=Path, help="folder to write; a snapshot that it holds already is replaced")
    _add_where(export)

    importing = add(
        "import",
        "add those entries of a snapshot that the bank does not have yet",
        "A bank that does not exist is created.",
    )
    importing.add_argument("snapshot", help="snapshot folder, or hf://datasets/<user>/<name>")
    importing.add_argument(
        "--reembed",
        action="store_true",
        help="embed the snapshot's texts again; needed if its vectors were made with another embedder",
    )
    _add_embedder(importing, f"{_BUILT_WITH}; only with --reembed")

    distill = add(
        "distill",
        "turn finished episodes into entries with an OpenAI-compatible endpoint or a local model, without training",
        "A bank that does not exist is created. If interrupted, run the same command again to resume. "
        "The file's format: docs/distill.md.",
    )
    distill.add_argument(
        "--episodes", type=Path, required=True, metavar="FILE", help="one JSON object per line; or a run's folder"
    )
    _add_extractor(distill, local=True)
    distill.add_argument("--workers", type=positive, default=8, help="episodes at the same time (default: 8)")
    distill.add_argument(
        "--list-nearest",
        type=count,
        default=3,
        metavar="N",
        help="entries that an episode may update instead of adding a near-copy (default: 3)",
    )
    _add_embedder(distill, f"{_BUILT_WITH}; builtin for a new bank")

    serve = add(
        "serve",
        "serve the bank to agents over MCP: tools search and search_and_ask",
        "The second needs an extractor (--endpoint, --model). Clients read only, and nothing is counted. A folder is "
        "read once, at the start, and not locked, so that others can use it. Over HTTP, an "
        "address other than the loopback needs a token in COMPRL_MCP_TOKEN.",
    )
    serve.add_argument("--transport", choices=("stdio", "http"), default="stdio", help="default: %(default)s")
    serve.add_argument("--host", help="address to listen on, with http (default: 127.0.0.1)")
    serve.add_argument("--port", type=count, help="with http; 0 takes a free one (default: 8765)")
    _add_extractor(serve, local=False)
    _add_embedder(serve, _BUILT_WITH)

    for name, help in (
        ("delete", "delete the selected entries"),
        ("quarantine", "exclude the selected entries from retrieval, without deleting them"),
        ("release", "let the selected quarantined entries be retrieved again"),
    ):
        action = add(name, help, "Shows the entries and asks before changing anything.")
        _add_where(action)
        action.add_argument(
            "--id",
            nargs="+",
            action="extend",
            default=[],
            help="select entries by their ids, or unique prefixes of them; with --where, both must hold",
        )
        action.add_argument("--dry-run", action="store_true", help="show what would be changed, and change nothing")
        action.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        if name == "quarantine":
            action.add_argument(
                "--reason", default="by hand", help="reason to store with the entries (default: %(default)s)"
            )

    add(
        "verify",
        "check that memory and store hold the same entries",
        "Prints every difference; the exit code is 1 if there is any.",
    )

    reembed = add("reembed", "replace the vectors of all entries by those of another embedder")
    _add_embedder(reembed)
    parser.set_defaults(run=run)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", nargs="+", action="extend", default=[], metavar="CONDITION", help=_WHERE)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=count, default=20, help="print at most so many entries; 0: all (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def _add_extractor(parser: argparse.ArgumentParser, *, local: bool) -> None:
    add_model(parser, "extractor", local=local)
    parser.add_argument(
        "--max-prompt-tokens",
        type=positive,
        default=24_000,
        help="longest prompt, estimated; longer episodes lose turns from their middle (default: 24000)",
    )


def _add_embedder(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    help = "sentence-transformers model, folder of one, or builtin"
    parser.add_argument(
        "--embedder",
        required=default is None,
        metavar="MODEL",
        help=f"{help} (default: {default})" if default else help,
    )
    parser.add_argument("--embedder-url", metavar="URL", help="OpenAI-compatible endpoint that serves MODEL")
    stored = "(default: the one stored with the bank, if it was built with MODEL)"
    parser.add_argument("--query-prompt", help=f"text to put before every query {stored}")
    parser.add_argument("--document-prompt", help=f"text to put before every entry {stored}")
    parser.add_argument(
        "--documents", choices=("text", "title"), help="what of an entry is embedded (default: as stored with the bank)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the selected sub-command of ``bank``."""
    from verl_comprl.experience import StoreError

    try:
        return asyncio.run(_command(options.action)(options))
    except StoreError as error:
        raise ValueError(str(error)) from error


def _command(action: str) -> "Command":
    """Import a sub-command; apart from the others, since some of them need an extra."""
    if action == "distill":
        from verl_comprl.cli.bank.distill import distill

        return distill
    if action == "serve":
        from verl_comprl.cli.bank.serve import serve

        return serve
    from verl_comprl.cli.bank import read, write

    return (read.COMMANDS | write.COMMANDS)[action]
