"""Makes the dataset files of one world: training and held-out instances of the first families."""

import os
from pathlib import Path

from env_adapters.vaults.dataset import build_rows
from env_adapters.vaults.world import FAMILIES, HELD_OUT, KINDS, NAMES

EVALUATED = 192
"""Rows of the evaluation file, whatever the number of families; an evaluation has as many episodes of each kind."""


def make_data(folder: Path, *, world: int, families: int) -> tuple[Path, Path]:
    """Write the rows of the first ``families`` families of a world.

    Args:
        folder: Folder of all worlds.
        world: Number of the world, which is the seed of its codes.
        families: From 1 to 3.

    Returns:
        The training file, with every training instance once, and the evaluation file: ``EVALUATED`` episodes, equally
        many of each rule, on instances that never occur in training.
    """
    import pandas

    files = []
    for split, count in (
        ("train", len(KINDS) * (len(NAMES) - HELD_OUT)),
        ("val", EVALUATED // families),
    ):
        path = folder / f"world-{world}" / f"{split}-{families}.parquet"
        rows = [row for family in FAMILIES[:families] for row in build_rows(split, count, world=world, family=family)]
        path.parent.mkdir(parents=True, exist_ok=True)
        # A run may be reading the file of an earlier call, which has the same rows.
        temporary = path.with_suffix(f".{os.getpid()}")
        pandas.DataFrame(rows).to_parquet(temporary)
        temporary.replace(path)
        files.append(path)
    return files[0], files[1]
