"""Ids of counted episodes over kills, checkpoints and full disks, against a dictionary."""

from pathlib import Path
from typing import Any

import pytest

from verl_comprl import files
from verl_comprl.manager import reported
from verl_comprl.manager.reported import REMEMBERED_STEPS, ReportedEpisodes


def test_a_process_that_was_killed_is_succeeded_by_one_that_knows_all_its_episodes(tmp_path: Path) -> None:
    file = tmp_path / "queue/reported.jsonl"
    episodes = ReportedEpisodes(file)
    for number in range(20):
        episodes.add(f"{number}_0", number)
    with file.open("ab") as torn:
        torn.write(b'{"id": "torn')
    again = ReportedEpisodes(file, recover=True)
    again.add("after_0", 20)  # not glued to the torn line
    assert ReportedEpisodes(file, recover=True).state() == {**{f"{n}_0": n for n in range(20)}, "after_0": 20}
    assert again.knows("19_0", 19) and not again.knows("20_0", 20) and again.lost == 0


def test_a_new_run_in_the_folder_knows_none_of_them_and_a_resumed_one_those_of_its_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "reported.jsonl"
    ReportedEpisodes(file).add("a_0", 1)
    assert ReportedEpisodes(file).state() == {}
    resumed = ReportedEpisodes(file)
    resumed.add("rolled_back_0", 9)
    resumed.restore({"b_0": 2})
    assert resumed.state() == ReportedEpisodes(file, recover=True).state() == {"b_0": 2}


def test_it_forgets_old_episodes_and_its_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported, "_SLACK_LINES", 50)
    file = tmp_path / "reported.jsonl"
    episodes, largest = ReportedEpisodes(file), 0
    for step in range(1, 5 * REMEMBERED_STEPS):
        for number in range(4):
            episodes.add(f"{step}-{number}_0", step)
        episodes.forget(step)
        largest = max(largest, len(file.read_text().splitlines()))
    last = range(step - REMEMBERED_STEPS, step + 1)
    assert episodes.state() == {f"{at}-{number}_0": at for at in last for number in range(4)}
    assert largest <= 2 * len(episodes.state()) + 4
    recovered = ReportedEpisodes(file, recover=True)
    recovered.forget(step)
    assert recovered.state() == episodes.state()


def test_an_episode_that_has_been_forgotten_is_not_counted_again(tmp_path: Path) -> None:
    """A manager that hangs for that long closes all those steps at once, and then gets what it has not confirmed."""
    episodes = ReportedEpisodes(tmp_path / "reported.jsonl")
    episodes.add("a_0", 9)
    episodes.forget(10 + REMEMBERED_STEPS)
    assert episodes.state() == {} and episodes.knows("a_0", 9) and not episodes.knows("b_0", 10)


def test_what_a_full_disk_refused_is_counted_and_known_until_a_kill(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("in the way")
    episodes = ReportedEpisodes(tmp_path / "queue/reported.jsonl")
    episodes.add("a_0", 1)
    assert episodes.knows("a_0", 1) and episodes.lost == 1
    episodes.restore({"a_0": 1, "b_0": 1})
    assert episodes.knows("b_0", 1) and episodes.lost == 3


def test_what_a_full_disk_refused_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported, "_LATE_LINES", 2)
    folder = tmp_path / "queue"
    folder.write_text("in the way")
    episodes = ReportedEpisodes(folder / "reported.jsonl")
    refused = {f"{number}_0": number for number in range(3)}
    for id, step in refused.items():
        episodes.add(id, step)
    folder.unlink()
    for later in ("a_0", "b_0", "c_0"):
        episodes.add(later, 3)
    assert ReportedEpisodes(folder / "reported.jsonl", recover=True).state() == episodes.state()
    assert len((folder / "reported.jsonl").read_text().splitlines()) == 6, "each is there once"
    assert episodes.lost == 3


def test_what_was_never_written_is_forgotten_like_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.write_text("in the way")
    episodes = ReportedEpisodes(folder / "reported.jsonl")
    episodes.add("old_0", 9)
    episodes.forget(10 + REMEMBERED_STEPS)
    folder.unlink()
    episodes.add("new_0", 110)
    assert ReportedEpisodes(folder / "reported.jsonl", recover=True).state() == {"new_0": 110}


@pytest.mark.parametrize("line", ["{}", "[]", "\x00", '{"id": 1, "step": 1}', '{"id": "x", "step": null}', "null"])
def test_damaged_lines_are_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "reported.jsonl"
    ReportedEpisodes(file).add("a_0", 1)
    file.write_text(f"{line}\n{file.read_text()}")
    assert ReportedEpisodes(file, recover=True).state() == {"a_0": 1}


@pytest.mark.parametrize(("failures", "lost"), [(1, 0), (99, 1)])
def test_a_file_that_cannot_be_read_is_read_again_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, failures: int, lost: int
) -> None:
    """One that can be read in a moment would otherwise be replaced by what the checkpoint knows."""
    file, read, left = tmp_path / "reported.jsonl", Path.read_bytes, iter(range(failures))
    ReportedEpisodes(file).add("a_0", 1)

    def fail(path: Path) -> bytes:
        if next(left, None) is not None:
            raise OSError(24, "Too many open files")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    monkeypatch.setattr(files, "PAUSES", (0.01, 0.01))
    episodes = ReportedEpisodes(file, recover=True)
    monkeypatch.undo()
    assert (episodes.state(), episodes.lost) == ({} if lost else {"a_0": 1}, lost)
    assert ("reported.jsonl is not complete" in caplog.text) == bool(lost)
    episodes.restore({"of the checkpoint": 1})
    assert bool([*tmp_path.glob("reported-*.jsonl")]) == bool(lost)
