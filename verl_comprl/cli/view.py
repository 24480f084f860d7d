"""Command ``comprl view``: writes one HTML file that shows runs, their experience and their episodes."""

import argparse
import os
import webbrowser
from pathlib import Path

FILE = "view.html"


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "view",
        help="look at runs in a browser",
        description="Write one HTML file that shows runs: curves, every entry of the bank, the episodes that it "
        "guided, and the extractor's calls. It needs neither a server nor a network, and can be passed on.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, finished or still running")
    parser.add_argument("--output", help=f"file to write (default: RUN/{FILE}; of several runs, {FILE} in this folder)")
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="episodes per run whose turns are kept, from evenly spaced steps; 0 keeps all (default: all, or about "
        "5000 of a run with more than 32 MB of them)",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page.

    Raises:
        FileNotFoundError: If a folder is not that of a run.
        ValueError: If ``--episodes`` is negative, or ``--output`` is empty, a folder or a device.
        OSError: If a run cannot be read, or the file cannot be written.
    """
    from verl_comprl.viewer.view import write_view

    runs = list({os.path.realpath(folder): folder for folder in options.runs}.values())
    if options.output == "":
        raise ValueError(f"--output is empty; name a file, such as {FILE}")
    file = Path(options.output or (runs[0] / FILE if len(runs) == 1 else FILE))
    if file.is_dir() or str(options.output).endswith("/"):  # which a Path leaves out
        raise ValueError(f"--output {options.output or file} is a folder; name a file, such as {file / FILE}")
    if file.exists() and not file.is_file():  # a device, which a finished page would take the place of
        raise ValueError(f"--output {file} is not a regular file")
    # A link that the user names stays one; in the folder of a run, it may be somebody else's and lead to any file.
    target = Path(os.path.realpath(file)) if options.output else file
    try:
        write_view(runs, target, options.episodes)
    except OSError as error:
        if error.filename is None or Path(error.filename) not in (target, *target.parents):
            raise  # a run that cannot be read
        raise OSError(f"--output {file} cannot be written: {error.strerror}") from error
    print(f"{file} ({file.stat().st_size / 2**20:.1f} MB)")
    if options.open:
        webbrowser.open(file.resolve().as_uri())
    return 0
