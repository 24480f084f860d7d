"""Command-line arguments of ``comprl env``; the commands are in ``listing``, ``play`` and ``attempts``."""

import argparse
from pathlib import Path

from verl_comprl.cli.environment_options import add_environment
from verl_comprl.cli.model_arguments import add_model
from verl_comprl.cli.numbers import positive


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command with its own sub-commands."""
    parser = commands.add_parser(
        "env",
        help="list the environments, play an episode yourself, or let a model play a dataset",
        description="List the environments, or play them.",
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

    attempts = actions.add_parser(
        "attempts",
        help="let a model play every task of a dataset several times",
        description="Let a model play every row of a dataset several times, without a trainer and without experience, "
        "and write a JSON line for each attempt. If interrupted, run the same command again to resume. The model reads "
        "what it would read in training.",
    )
    attempts.add_argument("--data", type=Path, required=True, metavar="FILE", help="dataset of `comprl data`")
    add_model(attempts, "model that plays", local=True)
    attempts.add_argument("--attempts", type=positive, default=16, help="attempts of each row (default: 16)")
    attempts.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines to write, or to continue"
    )
    attempts.add_argument("--parallel", type=positive, default=16, help="episodes at the same time (default: 16)")
    attempts.add_argument(
        "--step-timeout", type=float, default=9300.0, help="seconds for one step of the environment (default: 9300)"
    )
    attempts.set_defaults(run=_attempts)


def _list(options: argparse.Namespace) -> int:
    from verl_comprl.cli.env.listing import run

    return run(as_json=options.json)


def _play(options: argparse.Namespace) -> int:
    from verl_comprl.cli.env.play import run

    return run(options)


def _attempts(options: argparse.Namespace) -> int:
    from verl_comprl.cli.env.attempts import run

    return run(options)
