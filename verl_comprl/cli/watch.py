"""``comprl watch``: shows a run on the terminal, from its files."""

import argparse
import codecs
import io
import math
import sys
from pathlib import Path

_DESCRIPTION = (
    "Show a run that is running or over: progress, success of both halves, evaluations, extractor, bank, time and what "
    "has gone wrong. Reads the run's files alone, so it works from another machine that sees the folder. q quits."
)


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("watch", help="show a running or finished run live", description=_DESCRIPTION)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--once", action="store_true", help="print the page once and exit, as a pipe gets it")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the run.

    Raises:
        ValueError: If the interval or the run's configuration is wrong.
        FileNotFoundError: If there is no run in the folder.
    """
    from rich.console import Console

    from verl_comprl.watch.page import Page
    from verl_comprl.watch.screen import show
    from verl_comprl.watch.watched_run import WatchedRun

    if not 0 < options.interval < math.inf:
        raise ValueError(f"--interval {options.interval:g} must be a number of seconds above 0")
    is_terminal = sys.stdout.isatty()
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("plain", _plain)
        sys.stdout.reconfigure(errors="plain")
    # Not left to rich: FORCE_COLOR, which continuous integration sets, would make it take a pipe for a terminal.
    console = Console(width=None if is_terminal else 120, force_terminal=is_terminal, highlight=False, markup=False)
    watched = WatchedRun(options.run_folder)

    def page(hint: str = "q quits") -> Page:
        watched.refresh()
        return Page(watched, hint=hint)

    if options.once or not is_terminal:
        console.print(page(hint=""))
    else:
        show(page, console, options.interval)
    return 0


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace what the terminal's or the pipe's encoding does not have; as wide as it was."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join({"·": "-", "…": "."}.get(character, "?") for character in text), error.end
