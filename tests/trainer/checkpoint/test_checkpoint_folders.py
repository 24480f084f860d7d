"""Checkpoints of a run that are complete, that a start takes, and that are removed."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from verl_comprl.trainer.checkpoint.folders import ASIDE, MANIFEST, MARKER, CheckpointFolders, TornCheckpoint, flaw

PARTS = ("actor", "data.pt")


def fill(folder: Path, ranks: int = 1) -> None:
    """Write what a checkpoint consists of."""
    (folder / "comprl" / "bank").mkdir(parents=True)
    (folder / "comprl" / "queue.jsonl").touch()  # nothing was waiting
    (folder / "comprl" / "bank" / "manifest.json").write_text("{}")
    (folder / "actor").mkdir()
    for rank in range(ranks):
        for kind in ("model", "optim", "extra_state"):
            torch.save({"a": torch.arange(5)}, folder / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    torch.save({"place": 3}, folder / "data.pt")


def save(run: Path, step: int, keep: int | None = None) -> Path:
    folders = CheckpointFolders(run)
    fill(folders.begin() / f"global_step_{step}")
    return folders.finish(step, PARTS, keep)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if (path / "actor").exists())


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


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (cut, "actor/optim_world_size_1_rank_0.pt", r"optim_world_size_1_rank_0\.pt has \d+ bytes instead of \d+"),
        (grow, "comprl/queue.jsonl", r"comprl/queue\.jsonl has 1 bytes instead of 0"),
        (Path.unlink, "comprl/bank/manifest.json", r"comprl/bank/manifest\.json is missing"),
        (cut, MANIFEST, r"complete\.json cannot be read"),
        (lambda file: file.write_text("[]"), MANIFEST, r"complete\.json cannot be read"),
        (lambda file: shutil.rmtree(file), "actor", r"actor/\S+ is missing"),
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


def test_a_run_that_goes_on_from_an_earlier_step_gives_up_the_later_ones(tmp_path: Path) -> None:
    saved = [save(tmp_path, step) for step in (2, 4, 6)]
    folders = CheckpointFolders(tmp_path)
    folders.take_back(saved[0])
    assert folders.latest() == saved[0]
    save(tmp_path, 3, keep=2)  # of the later ones none counts, and none is removed before the run is there again
    assert names(tmp_path) == [f"global_step_{step}" for step in (2, 3, 4, 6)]
    (saved[1] / "old").touch()
    again = save(tmp_path, 4, keep=2)
    assert again == saved[1] and not (again / "old").exists() and folders.latest() == again
    folders.take_back(None)  # a new run in the same folder
    assert folders.latest() is None


def test_given_up_checkpoints_do_not_count_again_when_the_run_has_saved_beyond_them(tmp_path: Path) -> None:
    saved = {step: save(tmp_path, step, keep=2) for step in (30, 40, 47)}
    CheckpointFolders(tmp_path).take_back(saved[40])
    latest = save(tmp_path, 50, keep=2)
    assert names(tmp_path) == ["global_step_40", "global_step_50"]
    assert (saved[47] / "comprl" / "bank" / "manifest.json").exists()
    cut(latest / "data.pt")
    assert CheckpointFolders(tmp_path).latest() == saved[40]


@pytest.mark.parametrize("marker", [None, "", "four", "\x00\x00"])
def test_without_a_marker_that_can_be_read_the_latest_counts(tmp_path: Path, marker: str | None) -> None:
    save(tmp_path, 2)
    latest = save(tmp_path, 4)
    (tmp_path / MARKER).unlink()
    if marker is not None:
        (tmp_path / MARKER).write_text(marker)
    assert CheckpointFolders(tmp_path).latest() == latest


def test_a_checkpoint_of_an_earlier_release_counts_if_verls_marker_reaches_it(tmp_path: Path) -> None:
    fill(tmp_path / "global_step_4")
    fill(tmp_path / "global_step_6")  # whose writing was interrupted
    (tmp_path / MARKER).write_text("4")
    assert CheckpointFolders(tmp_path).latest() == tmp_path / "global_step_4"
    (tmp_path / MARKER).unlink()
    with pytest.raises(TornCheckpoint, match=r"global_step_6 is torn: complete\.json is missing"):
        CheckpointFolders(tmp_path).latest()
