"""Checkpoints on a disk that fails for moments: they are not torn, and a start does not give them up."""

import io
import os
import struct
import time
import zipfile
from collections.abc import Callable
from errno import EACCES, EIO, EMFILE, ESTALE
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from written_checkpoints import cut, fill, names, save

from verl_comprl import files
from verl_comprl.trainer.checkpoint import reading
from verl_comprl.trainer.checkpoint.contents import resume_folder
from verl_comprl.trainer.checkpoint.folders import GIVEN_UP, MARKER, CheckpointFolders
from verl_comprl.trainer.checkpoint.manifest import MANIFEST, TornCheckpoint, flaw
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint

WEIGHTS = "actor/model_world_size_1_rank_0.pt"
NEVER = 10**6


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(files, "time", SimpleNamespace(sleep=slept.append, strftime=time.strftime))
    return slept


class FailingFile(io.BytesIO):
    """A file of which bytes cannot be read from ``start`` to ``end``, shares of its size."""

    def __init__(self, path: Path, start: float, end: float, error: Exception | None = None) -> None:
        super().__init__(path.read_bytes())
        self._error = error or OSError(EIO, "Input/output error")
        size = path.stat().st_size
        self._bad = range(int(start * size), int(end * size))

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() in self._bad:
            raise self._error
        return super().read(size)


Harm = Callable[[pytest.MonkeyPatch, Path, int], None]


def at(name: str, function: str, failure: Callable[[Path], Any]) -> Harm:
    """Let a method of ``Path`` fail for ``name`` in a folder, as often as asked; ``failure`` may return a result."""

    def harm(patch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
        left, original = [times], getattr(Path, function)

        def fail_first(self: Path, *given: Any, **named: Any) -> Any:
            if self == folder / name and left[0]:
                left[0] -= 1
                with patch.context() as undone:
                    undone.setattr(Path, function, original)
                    return failure(self)
            return original(self, *given, **named)

        patch.setattr(Path, function, fail_first)

    return harm


def raising(error: BaseException) -> Callable[[Path], Any]:
    def fail(_: Path) -> Any:
        raise error

    return fail


def marker(patch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
    at(MARKER, "open", raising(OSError(EIO, "Input/output error")))(patch, folder.parent, times)


def listing(patch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
    """Let a folder not be listed, in either way."""
    left = [times]

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def fail_first(path: Any = ".") -> Any:
            if path == folder and left[0]:
                left[0] -= 1
                raise PermissionError(EACCES, "Permission denied", str(path))
            return original(path)

        return fail_first

    for name in ("listdir", "scandir"):
        patch.setattr(os, name, failing(getattr(os, name)))


FAILURES = {
    "list": (at(MANIFEST, "open", raising(OSError(EIO, "Input/output error"))), rf"{MANIFEST} cannot be .*\(Input/out"),
    "handles": (
        at("data.pt", "open", raising(OSError(EMFILE, "Too many open files"))),
        r"data\.pt cannot .*\(Too many",
    ),
    "size": (
        at("data.pt", "stat", raising(OSError(ESTALE, "Stale file handle"))),
        r"data\.pt cannot be .*\(Stale file",
    ),
    "memory": (at(WEIGHTS, "open", lambda path: FailingFile(path, 0, 0.2, MemoryError())), r"_0\.pt .*\(MemoryError\)"),
    # Which the reader of such files takes for one that was not written to its end.
    "end of weights": (at(WEIGHTS, "open", lambda path: FailingFile(path, 0.5, 2)), r"_0\.pt cannot .*\(Input/output"),
    "weights": (at(WEIGHTS, "open", lambda path: FailingFile(path, 0, 0.2)), r"_0\.pt cannot be read.*\(Input/output"),
    "bank": (
        at("comprl/bank/manifest.json", "open", lambda path: FailingFile(path, 0, 2)),
        r"bank/manifest\.json cannot",
    ),
    "mark": (
        at(GIVEN_UP, "stat", raising(PermissionError(EACCES, "Permission denied"))),
        r"cannot .*\(Permission denied",
    ),
    "folder": (listing, r"global_step_30 cannot be read at present \(Permission denied\)"),
    "marker": (marker, rf"{MARKER} cannot be read at present \(Input/output error\)"),
}


def content(run: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in run.rglob("*")}


@pytest.mark.parametrize("name", FAILURES)
def test_a_file_that_cannot_be_read_for_a_moment_is_read_a_little_later(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    folder, told = [save(tmp_path, step) for step in (20, 30)][-1], []
    FAILURES[name][0](monkeypatch, folder, 2)
    assert CheckpointFolders(tmp_path).latest(told.append, thorough=True) == folder
    assert told == [] and len(slept) == 2


@pytest.mark.parametrize("name", FAILURES)
def test_a_run_does_not_start_while_its_latest_checkpoint_cannot_be_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    """It would continue from the one before, and give this one up, which is whole."""
    folder, told = [save(tmp_path, step) for step in (20, 30)][-1], []
    before = content(tmp_path)
    with monkeypatch.context() as patch:
        FAILURES[name][0](patch, folder, NEVER)
        with pytest.raises(UnreadableCheckpoint, match=FAILURES[name][1]) as raised:
            CheckpointFolders(tmp_path).latest(told.append, thorough=True)
    assert told == [] and content(tmp_path) == before and 3 <= sum(slept) <= 10
    message = str(raised.value)
    assert "\n" not in message and "complete.json" not in message.replace(str(folder / MANIFEST), "")
    if name != "marker":
        advice = f"trainer.resume_mode=resume_path trainer.resume_from_path={tmp_path}/global_step_N, or remove it"
        assert message.endswith(advice) and f"checkpoint {folder} may be complete" in message
    assert CheckpointFolders(tmp_path).latest(thorough=True) == folder


def test_nor_while_the_disk_is_away_to_which_its_link_leads(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    linked = [save(run, step) for step in (20, 40)][-1]
    linked.symlink_to(linked.rename(disk / "forty"))
    disk.rename(tmp_path / "unmounted")
    before = content(run)
    with pytest.raises(UnreadableCheckpoint) as raised:
        CheckpointFolders(run).latest(pytest.fail, thorough=True)
    message = str(raised.value)
    assert f"{linked} cannot be read at present (its link leads to {disk / 'forty'}, where there is no" in message
    assert message.endswith(f"trainer.resume_from_path={run}/global_step_N, or remove it") and "\n" not in message
    assert content(run) == before
    (tmp_path / "unmounted").rename(disk)
    assert CheckpointFolders(run).latest(pytest.fail, thorough=True) == linked


def test_a_link_that_leads_nowhere_matters_only_where_it_is_the_latest(tmp_path: Path) -> None:
    for step in (20, 60):
        (tmp_path / f"global_step_{step}").symlink_to(tmp_path / "removed")
    latest = save(tmp_path, 40)
    assert CheckpointFolders(tmp_path).latest(pytest.fail) == latest


def test_nor_while_the_one_before_a_torn_one_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = [save(tmp_path, step) for step in (10, 20)][-1]
    cut(save(tmp_path, 30) / "data.pt")
    FAILURES["list"][0](monkeypatch, unreadable, NEVER)
    with pytest.raises(UnreadableCheckpoint, match="global_step_20"):
        CheckpointFolders(tmp_path).latest()


@pytest.mark.parametrize("failure", [raising(OSError(EIO, "Input/output error")), lambda path: FailingFile(path, 0, 2)])
def test_a_checkpoint_of_plain_verl_is_not_torn_either(
    tmp_path: Path, failure: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "global_step_30"
    fill(folder)
    for file in (folder / "comprl").rglob("*.json*"):
        file.unlink()
    (folder / "comprl" / "bank").rmdir()
    (folder / "comprl").rmdir()
    with monkeypatch.context() as patch:
        at(WEIGHTS, "open", failure)(patch, folder, NEVER)
        with pytest.raises(UnreadableCheckpoint, match=r"cannot be read at present \(Input/output error\)"):
            flaw(folder)
    assert flaw(folder) is None


def test_one_that_is_asked_for_is_not_called_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, 30)
    FAILURES["weights"][0](monkeypatch, folder, NEVER)
    config = OmegaConf.create({"trainer": {"resume_mode": "resume_path", "resume_from_path": str(folder)}})
    with pytest.raises(UnreadableCheckpoint, match="try again when it can"):
        resume_folder(config)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_does_not_fail_for_an_earlier_one_that_cannot_be_read(
    tmp_path: Path, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    FAILURES["list"][0](monkeypatch, tmp_path / "global_step_20", NEVER)
    save(tmp_path, 30, keep=keep)
    kept = ["global_step_30"] if keep == 1 else ["global_step_10", "global_step_20", "global_step_30"]
    assert names(tmp_path) == kept


@pytest.mark.parametrize("name", ["data.pt", "comprl", WEIGHTS])
def test_what_is_something_else_than_a_file_is_proof(tmp_path: Path, name: str) -> None:
    before, torn = save(tmp_path, 20), save(tmp_path, 30)
    (torn / name).rename(tmp_path / "moved")
    (torn / name).touch() if name == "comprl" else (torn / name).mkdir()
    assert CheckpointFolders(tmp_path).latest(thorough=True) == before


def test_damage_of_which_the_reader_has_no_words_is_damage(tmp_path: Path) -> None:
    """A directory that asks for more bytes than the file has: ``EOFError()``."""
    save(tmp_path, 30)
    file = tmp_path / "global_step_30" / WEIGHTS
    with zipfile.ZipFile(file) as archive:
        start, last = archive.start_dir, archive.infolist()[-1]
    data = bytearray(file.read_bytes())
    entry = data.rindex(b"PK\x01\x02", start)
    data[entry + 20 : entry + 28] = struct.pack("<LL", last.compress_size + 5000, last.file_size + 5000)
    file.write_bytes(data)
    assert reading.damage_of_torch_file(file)
    with pytest.raises(TornCheckpoint, match="is damaged: "):
        CheckpointFolders(tmp_path).latest(thorough=True)
