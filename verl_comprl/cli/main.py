# PYTHON_ARGCOMPLETE_OK
"""Entry point of ``comprl``: one module or package per sub-command, which loads what it needs when it runs."""

import argparse
import os
import select
import sys

from verl_comprl import __version__
from verl_comprl.cli import completion, data, evaluate, plot, train, view, watch
from verl_comprl.cli.bank import args as bank
from verl_comprl.cli.doctor import args as doctor
from verl_comprl.cli.env import args as env
from verl_comprl.cli.export import args as export
from verl_comprl.cli.parser import Parser
from verl_comprl.display.printable import printable
from verl_comprl.display.quiet import quiet_libraries
from verl_comprl.errors import INTERRUPTED
from verl_comprl.requirements import describe_missing

COMMANDS = (train, watch, view, plot, evaluate, export, bank, data, env, doctor, completion)
"""In the order of the help."""

_DESCRIPTION = (
    "Complementary RL for verl: an actor and an extractor of experience learn together. "
    "`comprl COMMAND --help` describes a command."
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog="comprl", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a sub-command and return its exit code; 1 if nobody reads its output any more, as after ``| head``."""
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()  # not left to the interpreter, which would complain
    except BrokenPipeError:
        # What is still in its buffer goes nowhere when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(given: list[str]) -> int:
    quiet_libraries()
    if given[:1] == ["train"]:  # everything after it is for Hydra
        try:
            return train.run(given[1:])
        except ImportError as error:  # of a library that it imports before it looks for verl
            print(f"error: {describe_missing(error)}")
            return 2
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # set by the shell's completion, which runs this program for its answers
        completion.complete(parser)
    options = parser.parse_args(given)
    try:
        return options.run(options)
    except (ValueError, ImportError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _output_is_unread():
            raise
        text = describe_missing(error) if isinstance(error, ImportError) else str(error)
        # It may quote a bank of somebody else.
        print(printable(f"comprl {options.command}: {text}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # also how a server is ended
        print(f"comprl {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _output_is_unread() -> bool:
    """Return whether it is standard output that has lost its reader, and not a connection of the command."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
