"""Checkpoints of a run that are complete, that a start takes, and that are removed."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from written_checkpoints import PARTS, cut, fill, names, save, set_marker

from verl_comprl.trainer.checkpoint import folders, manifest
from verl_comprl.trainer.checkpoint.folders import ASIDE, MARKER, CheckpointFolders
from verl_comprl.trainer.checkpoint.manifest import MANIFEST, TornCheckpoint, flaw

WEIGHTS = "actor/model_world_size_1_rank_0.pt"


def test_a_run_without_checkpoints_begins(tmp_path: Path) -> None:
    assert CheckpointFolders(tmp_path / "none").latest() is None
    assert CheckpointFolders(tmp_path).latest() is None


def test_a_checkpoint_lists_its_files_and_leaves_nothing_beside(tmp_path: Path) -> None:
    saved = save(tmp_path, 3)
    assert saved == tmp_path / "global_step_3" and flaw(saved) is None
    assert {path.name for path in tmp_path.iterdir()} == {"global_step_3", MARKER}
    listed = json.loads((saved / MANIFEST).read_text())["files"]
    there = {path.relative_to(saved).as_posix(): path.stat().st_size for path in saved.rglob("*") if path.is_file()}
    assert listed == {name: size for name, size in there.items() if name != MANIFEST}
    assert listed["data.pt"] > 0 == listed["comprl/queue.jsonl"]
    assert json.loads((saved / MANIFEST).read_text())["crc32"] == {
        name: zlib.crc32((saved / name).read_bytes()) for name in listed
    }
    assert (tmp_path / MARKER).read_text() == "3"
    assert CheckpointFolders(tmp_path).latest() == saved


@pytest.mark.parametrize("ending", ["written", "half", "named"])
def test_a_kill_while_it_is_written_costs_that_checkpoint(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its files are complete, before it is verified, and between the marker and the name."""
    before = save(tmp_path, 2)
    folders, told = CheckpointFolders(tmp_path), []
    written = folders.begin() / "global_step_4"
    if ending == "half":
        (written / "actor").mkdir(parents=True)
    else:
        fill(written)
    if ending == "named":

        def killed(self: Path, target: Path) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            folders.finish(4, PARTS, 1)
        monkeypatch.undo()
    assert CheckpointFolders(tmp_path).latest(told.append) == before
    expected = ["the checkpoint of step 4 was not finished, or was removed; the run continues from step 2"]
    assert told == (expected if ending == "named" else [])
    assert save(tmp_path, 4) == CheckpointFolders(tmp_path).latest()
    assert not (tmp_path / ASIDE).exists()


def test_what_a_save_has_left_and_cannot_be_removed_now_keeps_nobody_from_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a worker that hangs has a file open on a network's disk."""
    folders = CheckpointFolders(tmp_path)
    (folders.begin() / "held").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.trainer.checkpoint.folders.shutil.rmtree", lambda path, **_: None)
        assert list(folders.begin().iterdir()) == []
    assert len([*tmp_path.glob(f"{ASIDE}*")]) == 2
    folders.abandon()
    assert [*tmp_path.glob(f"{ASIDE}*")] == []


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def unlist(manifest: Path, name: str) -> None:
    listed = json.loads(manifest.read_text())
    del listed["files"][name]
    manifest.write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (cut, "actor/optim_world_size_1_rank_0.pt", r"optim_world_size_1_rank_0\.pt has \d+ bytes instead of \d+"),
        (grow, "comprl/queue.jsonl", r"comprl/queue\.jsonl has 1 bytes instead of 0"),
        (Path.unlink, "comprl/bank/manifest.json", r"comprl/bank/manifest\.json is missing"),
        (cut, MANIFEST, r"complete\.json cannot be read"),
        (lambda file: file.write_text("[]"), MANIFEST, r"complete\.json cannot be read"),
        (lambda file: shutil.rmtree(file), "actor", r"actor/\S+ is missing"),
        (Path.unlink, MANIFEST, r"complete\.json is missing"),
        (lambda file: file.write_text('{"files": {}}'), MANIFEST, r"complete\.json lists no actor"),
        (lambda file: unlist(file, "data.pt"), MANIFEST, r"complete\.json lists no data\.pt"),
        (lambda file: unlist(file, "comprl/bank/manifest.json"), MANIFEST, r"complete\.json lists no comprl/bank"),
    ],
)
def test_a_torn_checkpoint_is_skipped_and_the_one_before_is_used(tmp_path: Path, harm, file: str, message: str) -> None:
    before, torn, told = save(tmp_path, 2), save(tmp_path, 4), []
    harm(torn / file)
    assert CheckpointFolders(tmp_path).latest(told.append) == before
    (line,) = told
    assert line.startswith(f"checkpoint {torn} is torn: ") and line.endswith("; the run continues from step 2")
    with pytest.raises(TornCheckpoint, match=rf"global_step_4 is torn: \S*{message}"):
        shutil.rmtree(before)
        CheckpointFolders(tmp_path).latest()


def overwrite(file: Path, place: float) -> None:
    """Change a few bytes at ``place``, a share of the file."""
    content = bytearray(file.read_bytes())
    start = int(place * (len(content) - 4))
    content[start : start + 4] = bytes(byte ^ 0xFF for byte in content[start : start + 4])
    file.write_bytes(content)


def with_large_weights(run: Path, step: int) -> Path:
    folders = CheckpointFolders(run)
    written = folders.begin() / f"global_step_{step}"
    fill(written)
    torch.save({"a": torch.arange(100_000.0)}, written / WEIGHTS)
    (written / "comprl" / "bank" / "vectors").write_bytes(os.urandom(3000))
    return folders.finish(step, PARTS, None)


@pytest.mark.parametrize(
    ("file", "place", "message"),
    [
        (WEIGHTS, 0.5, r"actor/model_world_size_1_rank_0\.pt is damaged: \S+ does not have its checksum"),
        (WEIGHTS, 0.0, r"actor/model_world_size_1_rank_0\.pt is damaged: "),
        ("comprl/bank/vectors", 0.0, r"comprl/bank/vectors does not have the checksum of complete\.json"),
    ],
)
def test_damage_that_leaves_the_size_is_found_before_a_resume(
    tmp_path: Path, file: str, place: float, message: str
) -> None:
    """``torch.load`` reads such a file without a word."""
    before, damaged, told = with_large_weights(tmp_path, 2), with_large_weights(tmp_path, 4), []
    folders = CheckpointFolders(tmp_path)
    assert folders.latest(told.append, thorough=True) == damaged and told == []
    overwrite(damaged / file, place)
    assert folders.latest() == damaged  # by size alone
    assert folders.latest(told.append, thorough=True) == before
    (line,) = told
    assert line.endswith("; the run continues from step 2")
    with pytest.raises(TornCheckpoint, match=rf"global_step_4 is torn: {message}"):
        shutil.rmtree(before)
        folders.latest(thorough=True)


def test_a_wrong_bit_anywhere_in_a_small_file_of_pytorch_is_found(tmp_path: Path) -> None:
    """Also in the directory of its format, for which the format has no checksum, and without which it is not loaded."""
    saved = save(tmp_path, 2)
    file = saved / "data.pt"
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert (flaw(saved, thorough=True) or "").startswith("data.pt "), place
    file.write_bytes(content)
    assert flaw(saved, thorough=True) is None


def test_a_list_without_checksums_of_files_of_pytorch_is_read(tmp_path: Path) -> None:
    """As an earlier release wrote it."""
    before, saved = with_large_weights(tmp_path, 2), with_large_weights(tmp_path, 4)
    listed = json.loads((saved / MANIFEST).read_text())
    listed["crc32"] = {name: checksum for name, checksum in listed["crc32"].items() if not name.endswith(".pt")}
    (saved / MANIFEST).write_text(json.dumps(listed))
    assert CheckpointFolders(tmp_path).latest(thorough=True) == saved
    overwrite(saved / WEIGHTS, 0.5)
    assert CheckpointFolders(tmp_path).latest(thorough=True) == before


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_of_a_large_file_places_everywhere_are_compared(
    tmp_path: Path, place: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_BLOCK", 10)
    monkeypatch.setattr(manifest, "_BLOCKS", 5)
    saved = with_large_weights(tmp_path, 2)
    assert flaw(saved, thorough=True) is None
    overwrite(saved / "comprl/bank/vectors", place)
    assert flaw(saved, thorough=True) == "comprl/bank/vectors does not have the checksum of complete.json"
    (saved / "comprl/bank/vectors").write_bytes(b"")
    (saved / MANIFEST).write_text(json.dumps({"files": sizes(saved), "parts": [], "crc32": {"comprl/bank/vectors": 0}}))
    assert flaw(saved, thorough=True) is None


def sizes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def test_a_list_without_checksums_is_compared_by_size(tmp_path: Path) -> None:
    """As an earlier release wrote it."""
    saved = with_large_weights(tmp_path, 2)
    (saved / MANIFEST).write_text(json.dumps({"files": sizes(saved)}))
    overwrite(saved / WEIGHTS, 0.5)
    assert CheckpointFolders(tmp_path).latest(thorough=True) == saved
    cut(saved / WEIGHTS)
    assert flaw(saved) is not None


def test_no_complete_checkpoint_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    for step in (2, 4):
        cut(save(tmp_path, step) / "data.pt")
    with pytest.raises(TornCheckpoint) as caught:
        CheckpointFolders(tmp_path).latest()
    message = str(caught.value)
    assert "global_step_4 is torn" in message and "global_step_2 is torn" in message
    assert "trainer.resume_mode=disable" in message


def harmed(tmp_path: Path) -> tuple[CheckpointFolders, Path]:
    folders = CheckpointFolders(tmp_path)
    written = folders.begin() / "global_step_4"
    fill(written, ranks=2)
    return folders, written


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "data.pt").unlink(), "has no data.pt"),
        (lambda folder: shutil.rmtree(folder / "actor"), "has no actor"),
        (lambda folder: shutil.rmtree(folder / "comprl"), "has no comprl/bank"),
        (
            lambda folder: [path.unlink() for path in folder.glob("actor/model_*")],
            r"actor has no weights \(model_world_",
        ),
        (lambda folder: (folder / "extractor").mkdir(), "extractor has no weights"),
        (lambda folder: (shutil.rmtree(folder / "actor"), (folder / "actor").mkdir()), "has no actor"),
        (lambda folder: cut(folder / "actor" / "model_world_size_2_rank_1.pt"), "was not written to its end"),
        (
            lambda folder: (folder / "actor" / "optim_world_size_2_rank_1.pt").unlink(),
            "has no optim of rank 1 of 2; trainer.default_local_dir must be on a file system that all nodes share",
        ),
    ],
)
def test_what_is_not_whole_gets_no_name(tmp_path: Path, harm, message: str) -> None:
    before = save(tmp_path, 2)
    folders, written = harmed(tmp_path)
    harm(written)
    with pytest.raises(TornCheckpoint, match=message):
        folders.finish(4, PARTS, 1)
    assert names(tmp_path) == ["global_step_2"] and CheckpointFolders(tmp_path).latest() == before


@pytest.mark.parametrize(("keep", "left"), [(None, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4])])
def test_the_last_ones_are_kept_and_the_banks_of_all(tmp_path: Path, keep: int | None, left: list[int]) -> None:
    for step in range(1, 5):
        save(tmp_path, step, keep)
    assert names(tmp_path) == [f"global_step_{step}" for step in left]
    for step in set(range(1, 5)) - set(left):
        files = [path for path in (tmp_path / f"global_step_{step}").rglob("*") if path.is_file()]
        assert files == [tmp_path / f"global_step_{step}" / "comprl" / "bank" / "manifest.json"]
    told: list[str] = []
    assert CheckpointFolders(tmp_path).latest(told.append) == tmp_path / "global_step_4" and told == []


def test_a_torn_one_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    cut(save(tmp_path, 2) / "data.pt")
    save(tmp_path, 3, keep=2)
    assert names(tmp_path) == ["global_step_1", "global_step_2", "global_step_3"]
    save(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["global_step_3", "global_step_4"]


def test_a_baseline_leaves_no_empty_folders(tmp_path: Path) -> None:
    shutil.rmtree(save(tmp_path, 1) / "comprl")
    (tmp_path / "global_step_1" / MANIFEST).unlink()
    save(tmp_path, 2, keep=1)
    assert not (tmp_path / "global_step_1").exists()


def test_the_one_before_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    """Without this, verl removes it first."""
    before = save(tmp_path, 2, keep=1)
    folders = CheckpointFolders(tmp_path)
    fill(folders.begin() / "global_step_4")
    assert CheckpointFolders(tmp_path).latest() == before
    folders.finish(4, PARTS, 1)
    assert names(tmp_path) == ["global_step_4"]


@pytest.mark.parametrize("marker", [None, "", "four", "\x00\x00"])
def test_without_a_marker_that_can_be_read_the_latest_counts(tmp_path: Path, marker: str | None) -> None:
    save(tmp_path, 2)
    latest = save(tmp_path, 4)
    set_marker(tmp_path, marker)
    assert CheckpointFolders(tmp_path).latest() == latest


def test_a_checkpoint_of_plain_verl_counts_if_verls_marker_reaches_it(tmp_path: Path) -> None:
    for step in (4, 6):  # the writing of the second was interrupted
        fill(tmp_path / f"global_step_{step}")
        shutil.rmtree(tmp_path / f"global_step_{step}" / "comprl")
    (tmp_path / MARKER).write_text("4")
    assert CheckpointFolders(tmp_path).latest(thorough=True) == tmp_path / "global_step_4"
    (tmp_path / MARKER).unlink()
    with pytest.raises(TornCheckpoint, match=r"global_step_6 is torn: complete\.json is missing"):
        CheckpointFolders(tmp_path).latest()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: os.truncate(folder / WEIGHTS, 100), "was not written to its end"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "actor/README"), "has no weights"),
        (lambda folder: shutil.rmtree(folder / "actor"), "has no actor"),
        (lambda folder: (folder / "comprl").mkdir(), r"complete\.json is missing"),
        (lambda folder: (folder / "comprl.json").touch(), r"complete\.json is missing"),
        (lambda folder: (folder / "extractor").mkdir(), r"complete\.json is missing"),
    ],
)
def test_without_a_list_a_checkpoint_counts_only_if_it_may_be_verls_own(
    tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "global_step_4"
    fill(folder)
    shutil.rmtree(folder / "comprl")
    assert flaw(folder) is None
    (tmp_path / MARKER).write_text("4")
    harm(folder)
    with pytest.raises(TornCheckpoint, match=message):
        CheckpointFolders(tmp_path).latest()


@pytest.mark.parametrize("removals", range(4))
def test_a_kill_while_a_checkpoint_is_removed_leaves_no_torn_one(
    tmp_path: Path, removals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2)
    latest, left = save(tmp_path, 4), [removals]

    def killing(remove: Callable[..., None]) -> Callable[..., None]:
        def remove_or_die(*given: object, **settings: object) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            remove(*given, **settings)

        return remove_or_die

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killing(Path.unlink))
        patch.setattr(folders.shutil, "rmtree", killing(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            folders._strip(tmp_path / "global_step_2")
    shutil.rmtree(latest)
    (tmp_path / MARKER).write_text("2")
    assert CheckpointFolders(tmp_path).latest() is None


def test_what_a_save_has_left_is_removed_and_a_copy_of_it_is_not(tmp_path: Path) -> None:
    """A user may have copied the files of a last checkpoint that failed."""
    for name in (ASIDE, f"{ASIDE}-20261128-120000", f"{ASIDE}.bak", f"{ASIDE}-copy"):
        (tmp_path / name).mkdir()
    save(tmp_path, 3)
    assert {path.name for path in tmp_path.glob(f"{ASIDE}*")} == {f"{ASIDE}.bak", f"{ASIDE}-copy"}
