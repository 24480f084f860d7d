"""Entry point of ``comprl``: one module per sub-command."""

import argparse
import sys

from verl_comprl.cli import data, doctor, evaluate, view
from verl_comprl.cli.bank import args as bank
from verl_comprl.display.quiet import quiet_libraries


def _train(arguments: list[str]) -> int:
    from verl_comprl.train import main as train

    return train(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    quiet_libraries()
    if given[:1] == ["train"]:  # everything after it is for Hydra
        return _train(given[1:])
    parser = argparse.ArgumentParser(prog="comprl", description="Complementary RL for verl.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{bank,data,doctor,evaluate,train,view}")
    commands.add_parser("train", help="train actor and extractor (comprl train --help)")
    bank.add_parser(commands)
    data.add_parser(commands)
    doctor.add_parser(commands)
    evaluate.add_parser(commands)
    view.add_parser(commands)
    options = parser.parse_args(given)
    try:
        return options.run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"comprl {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
