"""``comprl plot``: draws figures from the folders of runs."""

import argparse
import sys
from pathlib import Path

_DESCRIPTION = (
    "Draw figures from the folders of runs, finished or not, as PNG and SVG: success in evaluations and in training, "
    "guided against free, actions per episode, time, bank, and reward of the extractor. Runs of one arm count as seeds "
    "of one experiment: their mean is drawn with its 95 percent interval."
)


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("plot", help="draw figures from the folders of runs", description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as outputs/runs/*")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the figures")
    parser.add_argument(
        "--by",
        nargs="+",
        default=["comprl.arm"],
        metavar="KEY",
        help="settings that make up a group of runs, such as comprl.arm comprl.bank.capacity (default: comprl.arm)",
    )
    parser.add_argument(
        "--window", type=int, metavar="STEPS", help="steps of the moving mean; 1 for none (default: a 25th of the run)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draw the figures; exit code 1 if there was nothing to draw.

    Raises:
        ValueError: If an option is wrong or a folder has no run.
        OSError: If a folder does not exist or the figures cannot be written.
        ImportError: If matplotlib or scipy is missing.
    """
    from verl_comprl.curves.groups import group_runs
    from verl_comprl.curves.run import open_run

    if options.window is not None and options.window < 1:
        raise ValueError(f"--window {options.window} must be at least 1")
    if options.output.exists() and not options.output.is_dir():
        raise ValueError(f"--output {options.output} is a file; name the folder of the figures")
    groups = group_runs([open_run(folder) for folder in options.runs], options.by)
    from verl_comprl.plot.figures import Drawing  # after all mistakes of the user: it loads matplotlib

    for group in groups:
        if different := group.differences():
            shown = ", ".join(different[:4]) + (" …" if len(different) > 4 else "")
            print(f"note: {len(group.runs)} runs of {group.name} differ in {shown}; see --by", file=sys.stderr)
    drawn = 0
    for name, files in Drawing(groups, options.window).save(options.output):
        drawn += bool(files)
        print(f"{name}: " + (", ".join(map(str, files)) or "no run has its metrics yet"))
    return 0 if drawn else 1
