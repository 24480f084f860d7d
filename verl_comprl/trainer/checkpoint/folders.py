"""Checkpoints of a run as folders: written aside, verified, then named by one rename; and which of them to resume from.

Owns the names in the run's folder, and when a checkpoint counts as complete. ``checkpointing`` fills the folders.

=================================  =====================================================================================
``global_step_N``                  A complete checkpoint. Its ``complete.json`` lists every file with its size.
``checkpoint_being_written``       What a save has not finished, or a kill has left; removed when the next save begins.
``latest_checkpointed_iteration``  verl's file with the latest step. Later checkpoints than that are of a part of the
``.txt``                           run that was given up by resuming from an earlier one; only their banks are left when
                                   the run has saved beyond them.
=================================  =====================================================================================
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

from verl_comprl.experience import SnapshotError
from verl_comprl.files import sync_folder, write_atomically

ASIDE = "checkpoint_being_written"
MANIFEST = "complete.json"
MARKER = "latest_checkpointed_iteration.txt"
MODEL = "actor"
"""Part that every checkpoint has; those of which only the bank is left have none."""

_NAME = re.compile(r"global_step_\d+")
_RANK = re.compile(r"(.+)_world_size_(\d+)_rank_(\d+)\.pt")
_REPLACED = "replaced"
_BANK = Path("comprl", "bank")


class TornCheckpoint(FileNotFoundError):
    """A checkpoint lacks a file, or a part of one."""


class CheckpointFolders:
    """Checkpoints in the folder of one run."""

    def __init__(self, run: Path) -> None:
        """Look at ``run``, which need not exist."""
        self._run = run.resolve()

    def begin(self) -> Path:
        """Return an empty folder, in which ``global_step_N`` is to be written.

        Raises:
            OSError: If the disk has less room than the latest checkpoint needs (ENOSPC).
        """
        aside = self._run / ASIDE
        self.abandon()
        aside.mkdir(parents=True)
        free, needed = shutil.disk_usage(aside).free, self._latest_size()
        if free < needed:
            raise OSError(ENOSPC, f"{free:,} bytes are free, and the latest checkpoint has {needed:,}", str(self._run))
        return aside

    def abandon(self) -> None:
        """Remove what was written since :meth:`begin`."""
        shutil.rmtree(self._run / ASIDE, ignore_errors=True)

    def finish(self, step: int, parts: Sequence[str], keep: int | None) -> Path:
        """Verify what was written since :meth:`begin`, give it its name and remove checkpoints that are too many.

        Args:
            step: Its step.
            parts: Files and folders that it must have.
            keep: Complete checkpoints to keep, the latest ones, this one included; None or 0 keeps all.

        Returns:
            Its folder.

        Raises:
            TornCheckpoint: If something is missing; the checkpoints that there were are kept.
        """
        aside, named = self._run / ASIDE, self._folder(step)
        written = aside / named.name
        _verify(written, parts)
        _write_manifest(written)
        if named.exists():  # of a part of the run that was given up, or torn
            named.rename(aside / _REPLACED)
        self._strip_given_up(step)
        # Before the rename, which is then the only moment that counts: until then the marker names nothing.
        self._mark(step)
        written.rename(named)
        sync_folder(self._run)
        shutil.rmtree(aside, ignore_errors=True)
        self._prune(step, keep)
        return named

    def take_back(self, resumed: Path | None) -> None:
        """Give up what comes after ``resumed``, one of these checkpoints; None gives up all of them."""
        if self._numbered():
            self._mark(step_of(resumed) if resumed else 0)

    def latest(self, tell: Callable[[str], object] = lambda text: None) -> Path | None:
        """Return the latest complete checkpoint, or None if the run has none at all.

        Args:
            tell: Called with a line for each later one that is not complete.

        Raises:
            TornCheckpoint: If there are checkpoints, and none is complete: a fresh start would not continue the run.
        """
        marked = self._marked()
        numbers = sorted((number for number in self._numbered() if marked is None or number <= marked), reverse=True)
        lines: list[str] = []
        torn: list[str] = []
        if marked and marked not in numbers:
            lines.append(f"the checkpoint of step {marked} was not finished, or was removed")
        for number in numbers:
            folder = self._folder(number)
            if not (folder / MANIFEST).exists() and not (folder / MODEL).exists():
                continue  # only its bank was kept
            wrong = flaw(folder, marked=marked is not None)
            if wrong is None:
                for line in lines:
                    tell(f"{line}; the run continues from step {number}")
                return folder
            torn.append(f"checkpoint {folder} is torn: {wrong}")
            lines.append(torn[-1])
        if torn:
            raise TornCheckpoint(
                f"{'; '.join(torn)}; no other is complete. Start with trainer.resume_mode=disable, "
                "or with another trainer.default_local_dir"
            )
        for line in lines:
            tell(f"{line}; the run starts from scratch")
        return None

    def _numbered(self) -> list[int]:
        if not self._run.is_dir():
            return []
        return [step_of(path) for path in self._run.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]

    def _latest_size(self) -> int:
        """Return the bytes of the latest checkpoint that lists its files; 0 if there is none."""
        for number in sorted(self._numbered(), reverse=True):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # as in flaw()
                return sum(json.loads((self._folder(number) / MANIFEST).read_bytes())["files"].values())
        return 0

    def _folder(self, step: int) -> Path:
        return self._run / f"global_step_{step}"

    def _mark(self, step: int) -> None:
        write_atomically(self._run / MARKER, str(step).encode())

    def _marked(self) -> int | None:
        """Return the step in verl's file; None if there is none, or nothing that can be read."""
        try:
            return int((self._run / MARKER).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _strip_given_up(self, step: int) -> None:
        """Leave only the banks of what was given up, before ``step``: its marker would let the rest count again."""
        marked = self._marked()
        for number in self._numbered():
            if marked is not None and marked < number < step:
                _strip(self._folder(number))

    def _prune(self, step: int, keep: int | None) -> None:
        """Leave only the banks of checkpoints before the ``keep`` latest complete ones."""
        if not keep or keep < 0:
            return
        before = sorted((number for number in self._numbered() if number <= step), reverse=True)
        folders = [self._folder(number) for number in before]
        complete = [folder for folder in folders if (folder / MODEL).exists() and flaw(folder) is None]
        for folder in folders[folders.index(complete[:keep][-1]) + 1 :]:
            _strip(folder)


def step_of(folder: Path) -> int:
    """Return N of a checkpoint ``global_step_N``."""
    return int(folder.name.rpartition("_")[2])


def is_full(error: Exception) -> bool:
    """Return whether a save failed because the disk, or the user's share of it, is full."""
    return isinstance(error, OSError | SnapshotError) and error.errno in (ENOSPC, EDQUOT)


def flaw(folder: Path, *, marked: bool = True) -> str | None:
    """Return what a checkpoint lacks, or None if it is complete.

    Args:
        folder: The checkpoint.
        marked: Whether verl's file has told that it was finished: earlier releases, and verl, leave nothing else.
    """
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_bytes())["files"]
        for name, size in sizes.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
    except FileNotFoundError as error:
        if Path(error.filename) == folder / MANIFEST:
            return None if marked else f"{MANIFEST} is missing"
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def _verify(folder: Path, parts: Sequence[str]) -> None:
    """Raise :class:`TornCheckpoint` unless all parts and the files of all ranks are there, whole."""
    for part in parts:
        path = folder / part
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            raise TornCheckpoint(f"the checkpoint that was written to {folder} has no {part}")
    ranks: dict[tuple[Path, str, int], set[int]] = {}
    for path in folder.rglob("*.pt"):
        if not zipfile.is_zipfile(path):  # torch's format, whose directory is at the end of a file
            raise TornCheckpoint(f"{path} was not written to its end")
        if named := _RANK.fullmatch(path.name):
            ranks.setdefault((path.parent, named[1], int(named[2])), set()).add(int(named[3]))
    for (parent, kind, count), found in ranks.items():
        if missing := set(range(count)) - found:
            raise TornCheckpoint(
                f"{parent} has no {kind} of rank {min(missing)} of {count}; "
                "trainer.default_local_dir must be on a file system that all nodes share"
            )


def _write_manifest(folder: Path) -> None:
    """Make all files durable, and list them with their sizes."""
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        sync_folder(Path(parent))
    write_atomically(folder / MANIFEST, json.dumps({"files": sizes}, indent=1).encode())


def _strip(folder: Path) -> None:
    """Remove everything but the bank, from which another run may start."""
    with suppress(OSError):  # a file that cannot be removed costs its space, not the run
        # Before the rest: what a kill leaves of it must not look like a checkpoint of an earlier release.
        if (folder / MODEL).exists():
            (folder / MODEL).rename(folder / _REPLACED)
        (folder / MANIFEST).unlink(missing_ok=True)
        for path in (*folder.glob("*"), *folder.joinpath(_BANK.parent).glob("*")):
            if folder / _BANK in (path, path / _BANK.name):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not (folder / _BANK).exists():
            shutil.rmtree(folder, ignore_errors=True)
