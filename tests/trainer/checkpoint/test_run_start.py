"""Effects of the start of a run on checkpoints and logs in its folder, before any model loads."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree, rmtree
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from written_checkpoints import save

from verl_comprl.config.reading import ConfigError
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.reader import EVENTS, METRICS
from verl_comprl.trainer import trainer as module
from verl_comprl.trainer.checkpoint.folders import CheckpointFolders, called, step_of
from verl_comprl.trainer.checkpoint.manifest import EXPERIENCE
from verl_comprl.trainer.checkpointing import CheckpointingTrainer
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.run_folder.log import append_record
from verl_comprl.trainer.trainer import ComplementarySync


class Ended(Exception):
    """Ends a start."""


def end(*_: Any) -> None:
    raise Ended


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """End each start where the models would load."""
    monkeypatch.setattr(module, "check_ranks", lambda *_: None)
    monkeypatch.setattr(module, "slot_groups", end)


class Experience(NoExperienceRuntime):
    """Notes how the bank was to be opened."""

    def open(self, folder: Path | None, *, is_own: bool) -> None:
        self.opened = folder, is_own


def start(run: Path, checkpoint: Path) -> Any:
    """Start a run from a checkpoint that is named; returns how the bank was opened."""
    trainer: Any = object.__new__(ComplementarySync)
    settings = {"default_local_dir": str(run), "resume_mode": "resume_path", "resume_from_path": str(checkpoint)}
    trainer.config = OmegaConf.create({"trainer": {**settings, "val_only": False}})
    notes: list[str] = []
    trainer.progress, trainer.comprl = SimpleNamespace(note=notes.append), SimpleNamespace(experience=False)
    trainer.experience_runtime, trainer._in_order, trainer._lock = Experience(), True, None
    with pytest.raises(Ended):
        trainer._setup()
    trainer.close()
    folder, is_own = trainer.experience_runtime.opened
    assert sum(f"{checkpoint} is a checkpoint of another run: " in note for note in notes) == (not is_own)
    return folder, is_own


def read_steps(run: Path, name: str = METRICS) -> list[int]:
    return [json.loads(line)["step"] for line in (run / name).read_text().splitlines()]


def test_a_checkpoint_that_was_moved_to_another_disk_and_linked_to_is_the_runs_own(tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "large_disk" / "global_step_4"
    linked = [save(run, step) for step in (2, 4, 6)][1]
    moved.parent.mkdir()
    linked.rename(moved)
    linked.symlink_to(moved)
    assert start(run, linked) == (linked, True)
    assert CheckpointFolders(run).latest() == linked


def test_a_link_names_the_step_whatever_the_folder_is_called_to_which_it_leads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    linked = [save(run, step) for step in (2, 4, 6)][1]
    linked.symlink_to(linked.rename(tmp_path / "moved"))
    assert start(run, linked) == (linked, True)
    assert CheckpointFolders(run).latest(pytest.fail) == linked


def test_a_link_that_leads_nowhere_is_refused_with_the_folder_that_is_missing(tmp_path: Path) -> None:
    link = tmp_path / "run" / "global_step_2"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "removed")
    with pytest.raises(FileNotFoundError, match=rf"^trainer.resume_from_path={tmp_path / 'removed'} does not exist$"):
        start(tmp_path / "run", link)


def test_a_link_of_another_name_is_followed(tmp_path: Path) -> None:
    own = save(tmp_path / "run", 2)
    (tmp_path / "chosen").symlink_to(own)
    assert start(tmp_path / "run", tmp_path / "chosen") == (own, True)


@pytest.mark.parametrize("killed", ["take_back_marker", "rewind_run"])
def test_a_kill_while_a_run_goes_back_leaves_no_log_that_ends_before_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    saved = [save(tmp_path, step) for step in (2, 4)]
    for step in (1, 2, 3, 4):
        append_record(tmp_path / METRICS, {"step": step})
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointingTrainer if killed == "take_back_marker" else module, killed, end)
        start(tmp_path, saved[0])
    latest = CheckpointFolders(tmp_path).latest()
    assert latest is not None and read_steps(tmp_path)[: step_of(latest)] == list(range(1, step_of(latest) + 1))
    start(tmp_path, latest)
    assert read_steps(tmp_path) == list(range(1, step_of(latest) + 1))


def run_with_copy(tmp_path: Path, keep: int | None = None) -> tuple[Path, Path, Path]:
    """Return the folder of a run that has saved steps 2 and 4, its checkpoint of step 2 and a copy of that."""
    run = tmp_path / "run"
    for step in (1, 2):
        for name in (METRICS, EVENTS):
            append_record(run / name, {"step": step})
    saved = save(run, 2)
    (saved / EXPERIENCE / "manager.json").write_text(json.dumps({"events": Prefix.of(run / EVENTS)._asdict()}))
    copy = tmp_path / "restored" / saved.name
    copytree(saved, copy)
    for step in (3, 4):
        for name in (METRICS, EVENTS):
            append_record(run / name, {"step": step})
    save(run, 4, keep)
    return run, saved, copy


def test_a_copy_of_the_runs_own_checkpoint_puts_nothing_aside_that_led_to_it(tmp_path: Path) -> None:
    run, saved, copy = run_with_copy(tmp_path)
    assert start(run, copy) == (copy, True)
    assert read_steps(run) == read_steps(run, EVENTS) == [1, 2]
    assert CheckpointFolders(run).latest() == saved and not saved.is_symlink()


def test_a_kill_while_a_copy_takes_the_place_of_a_link_leaves_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, own, copy = run_with_copy(tmp_path)
    leave_a_link(own)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in "symlink_to", "replace", "rename":
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, name, killed)
            CheckpointFolders(run).adopt(copy)
        assert own.is_symlink()
    CheckpointFolders(run).adopt(copy)
    assert own.samefile(copy)


def test_a_checkpoint_has_one_path_whatever_links_lead_to_its_run(tmp_path: Path) -> None:
    run, own, copy = run_with_copy(tmp_path)
    (link := tmp_path / "link").symlink_to(run)
    assert called(link / own.name) == own
    leave_a_link(own)
    own.unlink()
    own.symlink_to(copy)
    assert called(link / own.name) == own


def prune(own: Path) -> None:
    save(own.parent, 4, keep=1)


def damage(own: Path) -> None:
    file = own / "data.pt"
    file.write_bytes(bytes(file.stat().st_size))


def leave_a_link(own: Path) -> None:
    rmtree(own)
    own.symlink_to(own.with_name("removed"))


@pytest.mark.parametrize("lose", [prune, damage, rmtree, leave_a_link])
def test_a_run_that_is_killed_after_it_went_back_to_a_copy_goes_back_to_it_again(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    run, own, copy = run_with_copy(tmp_path)
    lose(own)
    before = tree(copy)
    assert start(run, copy) == (copy, True)
    latest = CheckpointFolders(run).latest(pytest.fail, thorough=True)
    assert latest == own and own.samefile(copy)
    assert start(run, own) == (own, True)  # the copy is the run's own from now on
    assert read_steps(run) == read_steps(run, EVENTS) == [1, 2]
    save(run, 3, keep=1)
    assert not own.is_symlink() and tree(copy) == before


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_bank_that_is_left_of_a_checkpoint_stays_when_its_copy_takes_its_place(tmp_path: Path) -> None:
    run, own, copy = run_with_copy(tmp_path, keep=1)
    (bank,) = tree(own).values()
    start(run, copy)
    (aside,) = run.glob(f"{own.name}-*")
    assert list(tree(aside).values()) == [bank]


def test_a_copy_within_what_is_left_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """As ``cp -r`` makes one where the name is taken."""
    run, own, copy = run_with_copy(tmp_path, keep=1)
    copy = copy.rename(own / copy.name)
    before, latest = tree(own), CheckpointFolders(run).latest()
    with pytest.raises(ConfigError, match=f"{copy} lies in {own}, whose place it is to take; move it elsewhere"):
        start(run, copy)
    assert tree(own) == before and latest == CheckpointFolders(run).latest() == run / "global_step_4"
    assert read_steps(run) == [1, 2, 3, 4]


def test_a_run_that_continues_another_ones_checkpoint_puts_aside_what_was_there(tmp_path: Path) -> None:
    run, other = tmp_path / "run", save(tmp_path / "other", 4)
    save(run, 2)
    for step in (1, 2):
        append_record(run / METRICS, {"step": step})
    assert start(run, other) == (other, False)
    assert read_steps(run) == [] and CheckpointFolders(run).latest() is None
    (aside,) = run.glob("metrics-*")
    assert len(aside.read_text().splitlines()) == 2


def test_a_checkpoint_whose_name_does_not_say_its_step_is_refused_before_anything_is_given_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    own = save(run, 2)
    append_record(run / METRICS, {"step": 2})
    renamed = save(tmp_path / "other", 4).rename(tmp_path / "other" / "step_4")
    with pytest.raises(ConfigError, match=f"resume_from_path={renamed} is not called global_step_N"):
        start(run, renamed)
    assert CheckpointFolders(run).latest() == own and read_steps(run) == [2]
