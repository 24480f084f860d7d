"""Checkpoints of a part of a run that was given up."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from written_checkpoints import PARTS, cut, fill, names, save, set_marker

from verl_comprl.trainer.checkpoint.folders import ASIDE, CheckpointFolders


def test_a_run_that_goes_on_from_an_earlier_step_gives_up_the_later_ones(tmp_path: Path) -> None:
    saved = [save(tmp_path, step) for step in (2, 4, 6)]
    folders = CheckpointFolders(tmp_path)
    folders.take_back(2)
    assert folders.latest() == saved[0]
    save(tmp_path, 3, keep=2)  # of the later ones none counts, and none is removed before the run is there again
    assert names(tmp_path) == [f"global_step_{step}" for step in (2, 3, 4, 6)]
    (saved[1] / "old").touch()
    again = save(tmp_path, 4, keep=2)
    assert again == saved[1] and not (again / "old").exists() and folders.latest() == again
    folders.take_back(0)  # a new run in the same folder
    assert folders.latest() is None


def test_given_up_checkpoints_do_not_count_again_when_the_run_has_saved_beyond_them(tmp_path: Path) -> None:
    saved = {step: save(tmp_path, step, keep=2) for step in (30, 40, 47)}
    CheckpointFolders(tmp_path).take_back(40)
    latest = save(tmp_path, 50, keep=2)
    assert names(tmp_path) == ["global_step_40", "global_step_50"]
    assert (saved[47] / "comprl" / "bank" / "manifest.json").exists()
    cut(latest / "data.pt")
    assert CheckpointFolders(tmp_path).latest() == saved[40]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function after which the disk has so many bytes, for all that is in the run's folder."""

    def limit(size: int) -> None:
        def usage(place: Path) -> SimpleNamespace:
            return SimpleNamespace(free=size - used(tmp_path))

        monkeypatch.setattr("verl_comprl.trainer.checkpoint.folders.shutil.disk_usage", usage)

    return limit


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_run_that_has_gone_back_saves_on_a_disk_with_room_for_those_that_it_keeps_and_one_more(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    saved = {step: save(tmp_path, step, keep=2) for step in (100, 110)}
    CheckpointFolders(tmp_path).take_back(100)
    small_disk(used(tmp_path) * 3 // 2)
    save(tmp_path, 102, keep=2)
    assert (saved[110] / "actor").exists()
    save(tmp_path, 104, keep=2)
    assert not (saved[110] / "actor").exists() and (saved[110] / "comprl" / "bank").exists()
    for step in (106, 108):
        latest = save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["global_step_106", "global_step_108"]
    assert CheckpointFolders(tmp_path).latest() == latest


def test_large_checkpoints_that_were_given_up_keep_no_small_one_from_the_disk(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    size = used(save(tmp_path, 1))
    large = tmp_path / "global_step_20"
    fill(CheckpointFolders(tmp_path).begin() / large.name)
    (tmp_path / ASIDE / large.name / "actor" / "large.bin").write_bytes(bytes(100 * size))
    CheckpointFolders(tmp_path).finish(20, PARTS, keep=1)
    CheckpointFolders(tmp_path).take_back(0)
    small_disk(used(tmp_path) + 2 * size)
    save(tmp_path, 5)
    assert names(tmp_path) == ["global_step_5"], "its size was not known before: room was made for what there was"


def test_large_checkpoints_that_were_given_up_stay_where_there_is_room_for_a_small_one(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    size = used(save(tmp_path, 1))
    large = CheckpointFolders(tmp_path).begin() / "global_step_20"
    fill(large)
    (large / "actor" / "large.bin").write_bytes(bytes(100 * size))
    CheckpointFolders(tmp_path).finish(20, PARTS, keep=None)
    CheckpointFolders(tmp_path).take_back(1)
    small_disk(used(tmp_path) + 2 * size)
    save(tmp_path, 3)
    assert names(tmp_path) == ["global_step_1", "global_step_20", "global_step_3"]


@pytest.mark.parametrize("named", [2, 6])
def test_a_kill_while_later_checkpoints_are_given_up_leaves_the_named_one_as_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    saved = {step: save(tmp_path, step) for step in (2, 4, 6, 8)}
    folders = CheckpointFolders(tmp_path)
    folders.take_back(2)
    folders.take_back(8)
    for writes in range(4):
        with monkeypatch.context() as patch:
            left = iter(range(writes))

            def killed(path: Path, data: bytes, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise InterruptedError
                path.write_bytes(data)

            patch.setattr("verl_comprl.trainer.checkpoint.folders.write_atomically", killed)
            with suppress(InterruptedError):
                folders.take_back(named)
        assert folders.latest() == saved[named] if writes else True


def test_what_was_given_up_stays_where_there_is_room(tmp_path: Path, small_disk: Callable[[int], None]) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
    CheckpointFolders(tmp_path).take_back(2)
    small_disk(3 * used(tmp_path))
    save(tmp_path, 3)
    assert names(tmp_path) == [f"global_step_{step}" for step in (2, 3, 4, 6)]


@pytest.mark.parametrize("marker", [None, "", "four", "6"])
def test_what_was_given_up_does_not_count_again_whatever_becomes_of_the_marker(
    tmp_path: Path, marker: str | None
) -> None:
    saved = {step: save(tmp_path, step) for step in (2, 4, 6)}
    folders = CheckpointFolders(tmp_path)
    folders.take_back(2)
    set_marker(tmp_path, marker)
    assert folders.latest() == saved[2]
    again = save(tmp_path, 4)
    set_marker(tmp_path, marker)
    assert folders.latest() == again
    save(tmp_path, 8, keep=2)
    assert names(tmp_path) == ["global_step_4", "global_step_8"]
    folders.take_back(0)
    set_marker(tmp_path, marker)
    assert folders.latest() is None


def test_a_checkpoint_that_was_given_up_counts_when_the_run_goes_on_from_it_after_all(tmp_path: Path) -> None:
    saved = {step: save(tmp_path, step) for step in (2, 4, 6)}
    folders = CheckpointFolders(tmp_path)
    folders.take_back(2)
    folders.take_back(4)
    assert folders.latest() == saved[4]


def test_a_run_that_goes_on_from_a_copy_gives_up_later_ones_only(tmp_path: Path) -> None:
    """Its own of that step may be there, or not."""
    saved = {step: save(tmp_path, step) for step in (2, 4, 6)}
    folders = CheckpointFolders(tmp_path)
    folders.take_back(5)
    assert folders.latest(pytest.fail) == saved[4]


def test_a_start_from_scratch_says_that_what_is_there_was_given_up(tmp_path: Path) -> None:
    lines: list[str] = []
    folders = CheckpointFolders(tmp_path)
    assert folders.latest(lines.append) is None and lines == []
    save(tmp_path, 2)
    folders.take_back(0)
    assert folders.latest(lines.append) is None
    assert lines == [f"the checkpoints in {tmp_path} were given up; the run starts from scratch"]


def test_what_a_link_names_stays_as_it_is(tmp_path: Path) -> None:
    """It may be a checkpoint of another run."""
    run, other = tmp_path / "run", tmp_path / "other"
    theirs = {step: save(other, step) for step in (4, 6)}
    run.mkdir()
    for step in theirs:
        (run / f"global_step_{step}").symlink_to(theirs[step])
    folders = CheckpointFolders(run)
    folders.take_back(4)
    save(run, 8, keep=1)
    assert names(run) == ["global_step_8"]
    assert CheckpointFolders(other).latest(pytest.fail, thorough=True) == theirs[6]
    assert names(other) == ["global_step_4", "global_step_6"]


def test_a_link_that_leads_nowhere_is_given_up_like_others(tmp_path: Path) -> None:
    link = tmp_path / "global_step_4"
    save(tmp_path, 2)
    link.symlink_to(tmp_path / "removed")
    CheckpointFolders(tmp_path).take_back(2)
    assert not link.is_symlink()


def test_nor_does_it_keep_a_checkpoint_from_its_name(tmp_path: Path) -> None:
    saved, link = save(tmp_path, 2), tmp_path / "global_step_4"
    link.symlink_to(tmp_path / "removed")
    assert save(tmp_path, 4, keep=2) == link and not link.is_symlink()
    assert CheckpointFolders(tmp_path).latest(pytest.fail) == link and names(tmp_path) == [saved.name, link.name]
