"""Checkpoints of a run as folders: written aside, verified, then named by one rename; and which of them to resume from.

Owns the names in the run's folder; ``manifest`` says whether a checkpoint is complete. ``checkpointing`` fills them.

=================================  =====================================================================================
``global_step_N``                  A complete checkpoint, or a link to one. Its ``complete.json`` lists every file.
``global_step_N/given_up``         Marks one of a part of the run that was given up by resuming from an earlier one, or
                                   by a fresh start; only its bank is left when the run has saved beyond it, or has
                                   no room for the next one.
``checkpoint_being_written``       What a save has not finished, or a kill has left; removed when the next save begins.
``latest_checkpointed_iteration``  verl's file with the latest step. Later checkpoints than that do not count either,
``.txt``                           which matters where plain verl has written them.
=================================  =====================================================================================
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from pathlib import Path

from verl_comprl.config.reading import ConfigError
from verl_comprl.files import GONE, dated, sync_folder, write_atomically
from verl_comprl.record.settings_file import SETTINGS
from verl_comprl.trainer.checkpoint.manifest import (
    EXPERIENCE,
    MANIFEST,
    MODEL,
    TornCheckpoint,
    flaw,
    verify,
    write_manifest,
)
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint, patiently

ASIDE = "checkpoint_being_written"
MARKER = "latest_checkpointed_iteration.txt"
GIVEN_UP = "given_up"

CHECKPOINT = re.compile(r"global_step_\d+")
"""Name of a checkpoint."""
_REPLACED = "replaced"
_BANK = Path(EXPERIENCE, "bank")


class CheckpointFolders:
    """Checkpoints in the folder of one run."""

    def __init__(self, run: Path) -> None:
        """Look at ``run``, which need not exist."""
        self._run = run.resolve()

    def begin(self) -> Path:
        """Return an empty folder, in which ``global_step_N`` is to be written.

        Where the disk has too little room, only the banks are left of checkpoints that were given up. The first
        checkpoint is not looked after: its size depends on engine, optimizer and what the user lets them save
        (``checkpoint.save_contents``), and a disk that turns out to be too small costs no more than the write.

        Raises:
            OSError: If the disk has less room than the latest checkpoint needs (ENOSPC).
        """
        aside = self._run / ASIDE
        self.abandon()
        if aside.exists():  # a worker that hangs has a file open on a network's disk, or somebody else owns it
            aside.rename(dated(aside))
        aside.mkdir(parents=True)
        needed = self._latest_size(counting=True)
        # One that was given up may be larger than any that this run writes: it forbids nothing.
        self._make_room(aside, needed or self._latest_size())
        free = shutil.disk_usage(aside).free
        if free < needed:
            raise OSError(ENOSPC, f"{free:,} bytes are free, and the latest checkpoint has {needed:,}", str(self._run))
        return aside

    def abandon(self) -> None:
        """Remove what was written since :meth:`begin`, and earlier what could not be removed then."""
        with suppress(OSError):
            dates = "[0-9]" * 8 + "-" + "[0-9]" * 6  # as ``dated`` names it; a copy that somebody has made stays
            for unfinished in (self._run / ASIDE, *self._run.glob(f"{ASIDE}-{dates}")):
                shutil.rmtree(unfinished, ignore_errors=True)

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
        verify(written, parts)
        write_manifest(written, parts)
        if os.path.lexists(named):  # of a part of the run that was given up, or torn, or a link that leads nowhere
            named.rename(aside / _REPLACED)
        self._strip_given_up(step)
        # Before the rename, which is then the only moment that counts: until then the marker names nothing.
        self._mark(step)
        written.rename(named)
        sync_folder(self._run)
        shutil.rmtree(aside, ignore_errors=True)
        self._prune(step, keep)
        return named

    def adopt(self, copy: Path) -> None:
        """Link to a copy of one of the run's checkpoints where its own is not complete: the next start may need it.

        What was there is kept, such as the bank that was left: the time is added to its name. A link is removed.

        Raises:
            ConfigError: If the copy lies in the folder whose place it is to take.
            UnreadableCheckpoint: If the run's own cannot be read at present.
        """
        named = self._folder(step_of(copy))
        if flaw(named, thorough=True) is None:
            return
        if named in copy.resolve().parents:
            raise ConfigError(f"{copy} lies in {named}, whose place it is to take; move it elsewhere")
        link = named.with_name(f"{named.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(copy.resolve())
        if named.exists() and not named.is_symlink():
            named.rename(dated(named))
        link.replace(named)  # another link in one step: a kill in between must not leave an earlier checkpoint
        sync_folder(self._run)

    def take_back(self, step: int) -> list[int]:
        """Give up what comes after ``step``, from which the run continues; 0 gives up all.

        Each is marked itself: it must not count again when verl's file is damaged. Of one that is a link, the link is
        removed: what it names may be another run's.

        Returns:
            Steps of those that were complete, and not given up before.
        """
        given_up: list[int] = []
        numbers = sorted(self._numbered(), reverse=True)
        if step in numbers:  # the user may have named one that was given up
            (self._folder(step) / GIVEN_UP).unlink(missing_ok=True)
        if numbers:  # before the later ones: after a kill in between, none of them counts
            self._mark(max((number for number in numbers if number <= step), default=0))
        for number in numbers:
            folder = self._folder(number)
            if number > step and _is_complete(folder):
                given_up.insert(0, number)
            if number > step and folder.is_symlink():
                folder.unlink()
            elif number > step and not _is_stripped(folder):
                write_atomically(folder / GIVEN_UP, b"")
        return given_up

    def latest(self, tell: Callable[[str], object] = lambda text: None, *, thorough: bool = False) -> Path | None:
        """Return the latest complete checkpoint, or None if the run has none at all.

        Args:
            tell: Called with a line for each later one that is not complete.
            thorough: Compare the content of its files, too.

        Raises:
            TornCheckpoint: If there are checkpoints, and none is complete: a fresh start would not continue the run.
            UnreadableCheckpoint: If one that may be complete cannot be read at present. The run would continue from an
                earlier one, and give it up.
        """
        marked = patiently(self._run / MARKER, self._marked)
        there = patiently(self._run, self._numbered)
        numbers = sorted((number for number in there if marked is None or number <= marked), reverse=True)
        lines: list[str] = []
        torn: list[str] = []
        if marked and marked not in numbers:
            lines.append(f"the checkpoint of step {marked} was not finished, or was removed")
        for number in numbers:
            folder = self._folder(number)
            try:
                if patiently(folder, partial(_counts_no_more, folder)):
                    continue
                wrong = flaw(folder, marked=marked is not None, thorough=thorough)
            except UnreadableCheckpoint as error:
                raise UnreadableCheckpoint(
                    f"{error}. The run does not start, since checkpoint {folder} may be complete; nothing was changed. "
                    "To go on without it, start with trainer.resume_mode=resume_path "
                    f"trainer.resume_from_path={self._run / 'global_step_N'}, or remove it"
                ) from error
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
        if there and not lines:
            lines.append(f"the checkpoints in {self._run} were given up")
        for line in lines:
            tell(f"{line}; the run starts from scratch")
        return None

    def _numbered(self) -> list[int]:
        if not self._run.is_dir():
            return []
        paths = [path for path in self._run.iterdir() if CHECKPOINT.fullmatch(path.name)]
        return [step_of(path) for path in paths if path.is_symlink() or path.is_dir()]

    def _latest_size(self, *, counting: bool = False) -> int:
        """Return the bytes of the latest checkpoint that lists its files, of all or of those that count; else 0."""
        for number in sorted(self._numbered(), reverse=True):
            folder = self._folder(number)
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # as in flaw()
                size = sum(json.loads((folder / MANIFEST).read_bytes())["files"].values())
                if not (counting and is_given_up(folder)):
                    return size
        return 0

    def _make_room(self, place: Path, needed: int) -> None:
        """Leave only the banks of checkpoints that were given up, the earliest first, until so many bytes are free."""
        for folder in map(self._folder, sorted(self._numbered())):
            if shutil.disk_usage(place).free >= needed:
                return
            if is_given_up(folder):
                _strip(folder)

    def _folder(self, step: int) -> Path:
        return self._run / f"global_step_{step}"

    def _mark(self, step: int) -> None:
        write_atomically(self._run / MARKER, str(step).encode())

    def _marked(self) -> int | None:
        """Return the step in verl's file; None if there is no file, or no number in it."""
        try:
            return int((self._run / MARKER).read_text(encoding="ascii"))
        except (*GONE, ValueError):
            return None

    def _strip_given_up(self, step: int) -> None:
        """Leave only the banks of what was given up, before ``step``: its marker would let the rest count again."""
        try:
            marked = self._marked()
        except OSError:  # what this package has given up is marked itself
            marked = None
        for number in self._numbered():
            is_later = marked is not None and marked < number
            if number < step and (is_later or is_given_up(self._folder(number))):
                _strip(self._folder(number))

    def _prune(self, step: int, keep: int | None) -> None:
        """Leave only the banks of checkpoints before the ``keep`` latest complete ones."""
        if not keep or keep < 0:
            return
        before = sorted((number for number in self._numbered() if number <= step), reverse=True)
        folders = [self._folder(number) for number in before]
        complete = [folder for folder in folders if _is_complete(folder)][:keep]
        for folder in folders[folders.index(complete[-1]) + 1 :] if complete else ():
            _strip(folder)


def called(path: Path) -> Path:
    """Return the absolute path of a checkpoint under the name that says its step, which may be that of a link."""
    if CHECKPOINT.fullmatch(path.name):
        return Path(os.path.realpath(path.parent)) / path.name
    return Path(os.path.realpath(path))


def called_by_its_run(path: Path) -> Path:
    """Return the absolute path of a checkpoint in its run's folder, which may have a link, or may be linked to."""
    named = called(path)
    return named if (named.parent / SETTINGS).exists() else Path(os.path.realpath(path))


def step_of(folder: Path) -> int:
    """Return N of a checkpoint ``global_step_N``."""
    return int(folder.name.rpartition("_")[2])


def is_given_up(folder: Path) -> bool:
    """Return whether a checkpoint is of a part of its run that was given up."""
    return (folder / GIVEN_UP).exists()


def _counts_no_more(folder: Path) -> bool:
    if folder.is_symlink() and not folder.is_dir():  # a disk may not be mounted at present
        raise OSError(f"its link leads to {folder.readlink()}, where there is no folder")
    return is_given_up(folder) or _is_stripped(folder)


def _is_complete(folder: Path) -> bool:
    """Return whether a checkpoint counts and is complete; one that cannot be read at present does not keep others."""
    with suppress(OSError):
        return not is_given_up(folder) and flaw(folder) is None
    return False


def _is_stripped(folder: Path) -> bool:
    """Return whether only the bank is left of a checkpoint, or a kill has interrupted that."""
    ours = folder / EXPERIENCE
    # Not glob(), for which a folder that may not be read is empty.
    rest = {*folder.iterdir(), *(ours.iterdir() if ours.is_dir() else ())}
    return folder / _REPLACED in rest or rest <= {folder / EXPERIENCE, folder / _BANK, folder / GIVEN_UP}


def _strip(folder: Path) -> None:
    """Remove everything but the bank, from which another run may start; of a link, the link only."""
    with suppress(OSError):  # a file that cannot be removed costs its space, not the run
        if folder.is_symlink():
            return folder.unlink()
        # Before the rest: what a kill leaves of it must not look like a checkpoint of an earlier release.
        if (folder / MODEL).exists():
            (folder / MODEL).rename(folder / _REPLACED)
        (folder / MANIFEST).unlink(missing_ok=True)
        for path in (*folder.glob("*"), *folder.joinpath(EXPERIENCE).glob("*")):
            if path == folder / _REPLACED or folder / _BANK in (path, path / _BANK.name):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        shutil.rmtree(folder / _REPLACED, ignore_errors=True)  # last: while it is there, the rest is no damage
        if not (folder / _BANK).exists():
            shutil.rmtree(folder, ignore_errors=True)
