"""Tells whether a checkpoint is complete, by the list of its files, written last, and what is wrong where it is not.

Sizes show what a kill or a full disk has cut; they are compared wherever a checkpoint is looked for. Content is
compared only before a checkpoint is resumed, which reads every file anyway. A file that cannot be read at present has
no flaw for that (``reading``). The actor hardly waits for checksums:

* Files of PyTorch (``.pt``: weights and optimizers, nearly all bytes) have a CRC-32 of each tensor in themselves, which
  ``torch.load`` does not look at. Large ones are not read when they are written; before a resume they are, at about
  3 GiB/s of one core, or as fast as the disk gives them. Nothing in them covers the directory of their format.
* Of any file up to 64 MiB the list has a CRC-32, also of those; of larger other files one of 64 MiB evenly spread over
  the file.

A CRC finds accidents; whoever can write here can also write a list that fits.
"""

import json
import os
import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_comprl.files import GONE, sync_folder, write_atomically
from verl_comprl.platform.under_way import doing, gets_on
from verl_comprl.trainer.checkpoint.reading import damage_of_torch_file, ends_as_written, patiently

MANIFEST = "complete.json"
MODEL = "actor"
"""Part that every checkpoint has; those of which only the bank is left have none."""
EXTRACTOR = "extractor"
STATE_FILE = "comprl.json"
EXPERIENCE = "comprl"

_TORCH = ".pt"
_WEIGHTS = ("model_world_size_*_rank_*.pt", "*.distcp", "*.safetensors", "*.bin")
"""Of verl's FSDP engine, of engines that use PyTorch's distributed checkpoints, and of Hugging Face."""
_RANK = re.compile(r"(.+)_world_size_(\d+)_rank_(\d+)\.pt")
_BLOCK, _BLOCKS = 2**20, 64


class TornCheckpoint(FileNotFoundError):
    """A checkpoint lacks a file, or a part of one."""


def flaw(folder: Path, *, marked: bool = True, thorough: bool = False) -> str | None:
    """Return what is wrong with a checkpoint, or None if it is complete.

    Args:
        folder: The checkpoint.
        marked: Whether verl's file has told that it was finished: plain verl, whose checkpoints have no list, leaves
            nothing else. Those with a part of ours always have one.
        thorough: Compare the content of the files, too; of a list of an earlier release, which has sizes only, nothing.

    Raises:
        UnreadableCheckpoint: If a file cannot be read at present, after some seconds.
    """
    name, file = MANIFEST, folder / MANIFEST
    try:
        listed: dict[str, Any] = json.loads(patiently(file, file.read_bytes))
        sizes: dict[str, int] = listed["files"]
        for part in (MODEL, *listed.get("parts", ())):
            if not any(name == part or name.startswith(f"{part}/") for name in sizes):
                return f"{MANIFEST} lists no {part}"
        for name, size in sizes.items():
            file = folder / name
            found = patiently(file, file.stat).st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
        if thorough and "crc32" in listed:
            with doing(f"comparing the files of {folder.name} with their checksums"):
                for name in sizes:
                    file = folder / name
                    if wrong := patiently(file, partial(_damage, file, name, listed["crc32"])):
                        return wrong
                    gets_on()
        return None
    except GONE:
        if name != MANIFEST:
            return f"{name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return patiently(folder, partial(_flaw_without_manifest, folder, marked))


def verify(folder: Path, parts: Sequence[str]) -> None:
    """Check that all parts, the weights of each model and the files of all ranks are there, to their ends.

    Args:
        folder: What has been written.
        parts: Files and folders that it must have.

    Raises:
        TornCheckpoint: If something is missing.
        OSError: If a file cannot be read.
    """
    for part in parts:
        path = folder / part
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            raise TornCheckpoint(f"{folder} has no {part}")
    for model in (MODEL, EXTRACTOR):
        if (folder / model).is_dir() and not any(next((folder / model).rglob(name), None) for name in _WEIGHTS):
            raise TornCheckpoint(f"{folder / model} has no weights ({', '.join(_WEIGHTS)})")
    ranks: dict[tuple[Path, str, int], set[int]] = {}
    for path in folder.rglob(f"*{_TORCH}"):
        if not ends_as_written(path):
            raise TornCheckpoint(f"{path} was not written to its end")
        if named := _RANK.fullmatch(path.name):
            ranks.setdefault((path.parent, named[1], int(named[2])), set()).add(int(named[3]))
    for (parent, kind, count), found in ranks.items():
        if missing := set(range(count)) - found:
            raise TornCheckpoint(
                f"{parent} has no {kind} of rank {min(missing)} of {count}; "
                "trainer.default_local_dir must be on a file system that all nodes share"
            )


def write_manifest(folder: Path, parts: Sequence[str]) -> None:
    """Make all files durable, and list them with their sizes and checksums.

    Args:
        folder: The checkpoint.
        parts: Files and folders without which it is not complete.
    """
    sizes: dict[str, int] = {}
    checksums: dict[str, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            listed = path.relative_to(folder).as_posix()
            sizes[listed] = path.stat().st_size
            if path.suffix != _TORCH or sizes[listed] <= _BLOCK * _BLOCKS:
                checksums[listed] = _crc32(path)
        sync_folder(Path(parent))
    content = {"parts": list(parts), "files": sizes, "crc32": checksums}
    write_atomically(folder / MANIFEST, json.dumps(content, indent=1).encode())


def _flaw_without_manifest(folder: Path, marked: bool) -> str | None:
    if not marked or any((folder / part).exists() for part in (STATE_FILE, EXPERIENCE, EXTRACTOR)):
        return f"{MANIFEST} is missing"
    try:
        verify(folder, [MODEL])
    except TornCheckpoint as error:
        return str(error)
    return None


def _damage(file: Path, name: str, checksums: dict[str, int]) -> str | None:
    if name.endswith(_TORCH) and (wrong := damage_of_torch_file(file)):
        return f"{name} is damaged: {wrong}"
    if name in checksums and _crc32(file) != checksums[name]:
        return f"{name} does not have the checksum of {MANIFEST}"
    return None


def _crc32(path: Path) -> int:
    size = path.stat().st_size
    starts = range(0, size, _BLOCK)
    if len(starts) > _BLOCKS:
        starts = [index * (size - _BLOCK) // (_BLOCKS - 1) for index in range(_BLOCKS)]
    checksum = 0
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            checksum = zlib.crc32(file.read(_BLOCK), checksum)
    return checksum
