"""The page of one or more runs."""

import os
from collections.abc import Sequence
from pathlib import Path

from verl_comprl.viewer.blocks import Block, dump, pack
from verl_comprl.viewer.curves import in_order
from verl_comprl.viewer.page import write_page
from verl_comprl.viewer.run import CollectedRun


def write_view(folders: Sequence[Path], file: Path, kept: int | None = None) -> None:
    """Write a page that shows runs.

    Args:
        folders: Folders of runs.
        file: HTML file.
        kept: Episodes of each run whose turns are kept, about; 0 keeps all, None about 5,000 of a large run. Of the
            others the page has a row only.

    Raises:
        FileNotFoundError: If a folder is not that of a run.
        OSError: If a run cannot be read, or the file cannot be written.
        ValueError: If ``kept`` is negative.
    """
    if kept is not None and kept < 0:
        raise ValueError(f"{kept} episodes: the number must be at least 0, which keeps all")
    names = run_names(folders)
    # All are read before a file is begun: what cannot be read leaves nothing behind, and is not blamed on the file.
    runs = [CollectedRun(folder, name, kept) for folder, name in zip(folders, names, strict=True)]
    write_page(file, " · ".join(names), _blocks(runs, names))


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return names for the runs: the folders' own, or their paths from the deepest common folder if these are equal."""
    paths = [Path(os.path.realpath(folder)) for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(names) and len(set(paths)) == len(paths):
        common = os.path.commonpath(paths)
        names = [os.path.relpath(path, common) for path in paths]
    return names


def _blocks(runs: Sequence[CollectedRun], names: Sequence[str]) -> list[Block]:
    titles = in_order({title for run in runs for title in run.curve_titles})
    page = pack("page", dump({"names": names, "steps": max(run.last_step for run in runs), "curves": titles}))
    blocks = [block for number, run in enumerate(runs) for block in run.blocks(f"run{number}")]
    # What the first page of every run needs stands before the details, so that it is shown while these are being read.
    return [page, *sorted(blocks, key=lambda block: block.name.count("/") == 2)]
