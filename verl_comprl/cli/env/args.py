"""Command-line arguments of ``comprl env``; the commands are in ``listing`` and ``play``."""

import argparse

from verl_comprl.cli.environment_options import add_environment


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command with its own sub-commands."""
    parser = commands.add_parser(
        "env", help="list the environments, or play an episode yourself", description="List or play environments."
    )
    actions = parser.add_subparsers(dest="action", required=True, title="commands", metavar="COMMAND")

    listing = actions.add_parser(
        "list",
        help="list the environments with their options",
        description="List the environments with their options, and what is missing of those that cannot be used here.",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    listing.set_defaults(run=_list)

    play = actions.add_parser(
        "play",
        help="play an episode in the terminal",
        description="Play an episode in the terminal. Shown is the text of the messages that a model reads, word for "
        "word; each line that you type is sent as its whole answer. End the input (Ctrl-D) to leave.",
    )
    add_environment(play)
    play.add_argument(
        "--seed", type=int, help="seed of the episode: even ones are training episodes, odd ones are held out"
    )
    play.add_argument("--experience", metavar="TEXT", help="play a guided episode, which reads this entry of a bank")
    play.set_defaults(run=_play)


def _list(options: argparse.Namespace) -> int:
    from verl_comprl.cli.env.listing import run

    return run(as_json=options.json)


def _play(options: argparse.Namespace) -> int:
    from verl_comprl.cli.env.play import run

    return run(options)
