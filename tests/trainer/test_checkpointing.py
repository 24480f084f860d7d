"""Verl's part and ours in one checkpoint, with verl's own code around stubs of the workers."""

import json
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from errno import EDQUOT
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError
from saving_parts import Callback, Experience, Workers
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.v1 import trainer_base

from verl_comprl.experience import EmbedderUnavailable, LeaseLost, SnapshotError, StoreError
from verl_comprl.experience.transfer.snapshot import write_snapshot
from verl_comprl.trainer.checkpoint.contents import resume_folder
from verl_comprl.trainer.checkpoint.folders import ASIDE, MARKER, CheckpointFolders
from verl_comprl.trainer.checkpoint.manifest import TornCheckpoint
from verl_comprl.trainer.stopping import StopRequest
from verl_comprl.trainer.trainer import ComplementaryColocateAsync, ComplementarySync
from verl_comprl.trainer.watchdog.liveness import VitalActors

KINDS = [ComplementarySync, ComplementaryColocateAsync]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order."""
    events: list[str] = []

    def save_queue(folder: str, metadata: Any) -> None:
        Path(folder).mkdir()
        Path(folder, "metadata.json").write_text(json.dumps(metadata))
        events.append("queue")

    queue = SimpleNamespace(save_checkpoint=save_queue, load_checkpoint=lambda folder: None, kv_list=lambda *_: {})
    monkeypatch.setattr(trainer_base, "tq", queue)
    monkeypatch.setattr("verl_comprl.trainer.step.keys.tq", queue)
    return events


def make_trainer(kind: type, run: Path, events: list[str], **settings: Any) -> Any:
    trainer: Any = object.__new__(kind)
    defaults = {
        "default_local_dir": str(run),
        "default_hdfs_dir": None,
        "resume_mode": "auto",
        "resume_from_path": None,
        "del_local_ckpt_after_load": False,
        "val_only": False,
    }
    trainer.config = OmegaConf.create(
        {"trainer": defaults | settings, "actor_rollout_ref": {"actor": {"checkpoint": {"async_save": False}}}}
    )
    OmegaConf.set_struct(trainer.config, True)
    trainer.trainer_mode, trainer.use_critic, trainer._saved_step = kind.base_mode, False, -1
    trainer._saves_failed, trainer.total_training_steps, trainer.stop = 0, 9, StopRequest()
    trainer.actor_rollout_wg, trainer.checkpoint_callback, trainer.vital = Workers(), Callback(events), VitalActors()
    trainer.experience_runtime, trainer._episodes = Experience(events), SimpleNamespace(settle=lambda: None)
    rows: Any = list(range(10))
    trainer.train_dataloader = StatefulDataLoader(rows, batch_size=1)
    trainer._resumed_from = resume_folder(trainer.config, events.append)
    return trainer


def save(trainer: Any, step: int) -> None:
    trainer.global_steps = trainer.actor_rollout_wg.weights = step
    trainer.experience_runtime.is_held_back = True
    try:
        trainer._save_checkpoint()
    finally:
        assert not trainer.experience_runtime.is_held_back, "the extractor would be trained no more"


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_has_both_parts_and_ours_is_not_older(tmp_path: Path, events: list[str], kind: type) -> None:
    """An episode is reported before its tokens are in TransferQueue, so bank and queue are saved after it."""
    trainer = make_trainer(kind, tmp_path / "run", events)
    save(trainer, 3)
    queue = ["queue"] if kind is not ComplementarySync else []
    assert events == [*queue, "ours", "global_step_3"] and trainer._saved_step == 3
    parts = {"actor", "data.pt", "comprl.json", "complete.json", *(["transfer_queue"] if queue else [])}
    assert {path.name for path in (tmp_path / "run" / "global_step_3").iterdir()} == parts
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"global_step_3", MARKER}
    assert trainer.config.trainer.default_local_dir == str(tmp_path / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_weights_and_place_of_the_latest_complete_one(
    tmp_path: Path, events: list[str], kind: type
) -> None:
    trainer, drawn = make_trainer(kind, tmp_path, events), []
    for step, batch in zip(range(1, 7), trainer.train_dataloader, strict=False):
        drawn.append(batch.item())
        if step % 2 == 0:
            save(trainer, step)
    (tmp_path / "global_step_6" / "comprl.json").unlink()
    events.clear()
    resumed = make_trainer(kind, tmp_path, events)
    resumed._load_checkpoint()
    assert "global_step_6 is torn: comprl.json is missing; the run continues from step 4" in events[0]
    assert (resumed.global_steps, resumed.actor_rollout_wg.weights, resumed._saved_step) == (4, 4, 4)
    assert next(iter(resumed.train_dataloader)).item() == drawn[4]
    assert resumed.config.trainer.resume_mode == "auto"


def full_disk(trainer: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one part of the next saves find no room."""
    error = OSError(28, "No space left on device")

    def fail(*_: Any) -> None:
        raise error

    if part == "room":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    elif part == "ours":
        monkeypatch.setattr(trainer.experience_runtime, "save", fail)
    elif part == "bank":
        monkeypatch.setattr("verl_comprl.experience.transfer.snapshot.write_atomically", fail)
        bank = Path(trainer.config.trainer.default_local_dir, "bank")
        monkeypatch.setattr(trainer.experience_runtime, "save", lambda *_: save_bank_elsewhere(bank))
    else:
        monkeypatch.setattr("verl_comprl.trainer.checkpoint.folders.write_manifest", fail)


def save_bank_elsewhere(folder: Path) -> None:
    """Raise what the manager's process does, as it arrives in another."""
    try:
        write_snapshot(folder, [], np.zeros((0, 8), np.float32), {"dimension": 8})
    except SnapshotError as error:
        raise pickle.loads(pickle.dumps(error)) from None


@pytest.mark.parametrize("part", ["room", "ours", "bank", "manifest"])
def test_a_full_disk_costs_a_checkpoint_and_not_the_run_unless_it_is_the_last(
    tmp_path: Path, events: list[str], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events, max_actor_ckpt_to_keep=1)
    save(trainer, 2)
    callback = trainer.checkpoint_callback
    with monkeypatch.context() as patch:
        full_disk(trainer, part, patch)
        save(trainer, 4)
        assert "no checkpoint of step 4, the run continues without it" in capsys.readouterr().out
        assert trainer.checkpoint_callback is callback and (trainer._saved_step, trainer._saves_failed) == (2, 1)
        assert resume_folder(trainer.config) == tmp_path / "global_step_2" and not (tmp_path / ASIDE).exists()
        with pytest.raises(OSError, match=r"\[Errno 28\] the disk is full"):
            save(trainer, trainer.total_training_steps)
        trainer.stop.made = True
        with pytest.raises(OSError, match=r"\[Errno 28\] the disk is full"):
            save(trainer, 4)
    save(trainer, 6)
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_6"]


def torch_error() -> Exception:
    """What ``torch.save`` raises on a full disk."""
    try:
        raise RuntimeError("basic_ios::clear: iostream error")
    except RuntimeError:
        try:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 598")
        except RuntimeError as error:
            return error


def of_a_worker(cause: Exception) -> Exception:
    """What the driver gets: an error with the whole remote traceback, and without the number."""
    return RayTaskError("save_checkpoint", "Traceback\n  many\n  lines\n", cause).as_instanceof_cause()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch_error(), "[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 598"),
        (of_a_worker(torch_error()), "[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 598"),
        (RuntimeError("[storage]: save checkpoint failed"), "[storage]: save checkpoint failed"),
    ],
)
def test_an_error_that_does_not_tell_is_one_of_a_full_disk_if_nothing_can_be_written(
    tmp_path: Path,
    events: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    full: bool,
) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events)
    trainer.actor_rollout_wg.failure = error

    def fsync(descriptor: int) -> None:
        raise OSError(EDQUOT, "Disk quota exceeded")

    if not full:
        with pytest.raises(type(error)) as raised:
            save(trainer, 2)
        assert raised.value is error and trainer._saves_failed == 0
        return
    monkeypatch.setattr("verl_comprl.trainer.checkpoint.full_disk.os.fsync", fsync)
    save(trainer, 2)
    expected = f"no checkpoint of step 2, the run continues without it: the disk is full ({reason})\n"
    assert capsys.readouterr().out == expected
    assert trainer._saves_failed == 1 and list(tmp_path.iterdir()) == []


def test_a_workers_error_has_the_number_in_its_cause(
    tmp_path: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events)
    trainer.actor_rollout_wg.failure = of_a_worker(OSError(28, "No space left on device"))
    save(trainer, 2)
    assert "it: the disk is full ([Errno 28] No space left on device)\n" in capsys.readouterr().out
    assert trainer._saves_failed == 1 and list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 40 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_really_fills_while_the_engine_writes_costs_that_checkpoint(
    small_disk: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(ComplementarySync, small_disk / "run", events)
    (small_disk / "other").write_bytes(bytes(30 * 2**20))
    trainer.actor_rollout_wg.size = 4 * 2**20  # 16 MiB
    for step in (2, 4):  # no checkpoint tells before how much is needed
        save(trainer, step)
        assert (
            f"no checkpoint of step {step}, the run continues without it: the disk is full (" in capsys.readouterr().out
        )
        assert list((small_disk / "run").iterdir()) == []
    with pytest.raises(OSError, match=r"\[Errno 28\] the disk is full"):
        save(trainer, trainer.total_training_steps)
    (small_disk / "other").unlink()
    save(trainer, 6)
    assert trainer._saves_failed == 2 and resume_folder(trainer.config) == small_disk / "run" / "global_step_6"


def test_a_store_that_is_away_costs_a_checkpoint_and_the_last_one_waits_for_it(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, slept = make_trainer(ComplementarySync, tmp_path, events), []
    save(trainer, 2)
    runtime, last = trainer.experience_runtime, trainer.total_training_steps
    save_ours, answers = runtime.save, iter([StoreError("away"), StoreError("away"), EmbedderUnavailable("away")])

    def save_if_there(folder: Path, step: int, is_stopped: Any) -> None:
        if error := next(answers, None):
            raise error
        save_ours(folder, step, is_stopped)

    monkeypatch.setattr(runtime, "save", save_if_there)
    monkeypatch.setattr("verl_comprl.trainer.checkpointing.time.sleep", slept.append)
    save(trainer, 4)
    assert "no checkpoint of step 4, the run continues without it: away" in capsys.readouterr().out
    assert (trainer._saved_step, trainer._saves_failed, slept) == (2, 1, [])
    assert resume_folder(trainer.config) == tmp_path / "global_step_2" and not (tmp_path / ASIDE).exists()
    save(trainer, last)
    assert len(slept) == 2 and resume_folder(trainer.config) == tmp_path / f"global_step_{last}"
    monkeypatch.setattr("verl_comprl.trainer.checkpointing.STORE_SECONDS", 0.0)
    answers = iter([StoreError("away")])
    with pytest.raises(StoreError, match="away"):
        save(trainer, last)
    answers = iter([LeaseLost("no longer its writer")])
    with pytest.raises(LeaseLost):  # nothing would ever be saved again, of the models neither
        save(trainer, 4)
    assert resume_folder(trainer.config) == tmp_path / f"global_step_{last}"


def test_a_checkpoint_that_would_lack_episodes_is_left_out_unless_it_is_the_last(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run would train those whose tokens it has, and never distil or credit them."""
    trainer = make_trainer(ComplementaryColocateAsync, tmp_path, events)
    save(trainer, 2)
    missing, save_ours = "3 episodes are not confirmed by the manager", trainer.experience_runtime.save
    monkeypatch.setattr(trainer.experience_runtime, "save", lambda *given: save_ours(*given) or missing)
    save(trainer, 4)
    assert capsys.readouterr().out == f"no checkpoint of step 4, the run continues without it: {missing}\n"
    assert (trainer._saved_step, trainer._saves_failed) == (2, 1) and not (tmp_path / ASIDE).exists()
    assert resume_folder(trainer.config) == tmp_path / "global_step_2"
    trainer.request_stop()
    save(trainer, 6)  # nothing else will save what has been trained
    assert capsys.readouterr().out == f"the checkpoint of step 6 is written nevertheless: {missing}\n"
    trainer.stop.made = False
    save(trainer, trainer.total_training_steps)
    assert resume_folder(trainer.config) == tmp_path / f"global_step_{trainer.total_training_steps}"
    assert trainer._saves_failed == 1


def test_a_save_that_fails_otherwise_leaves_the_one_before(tmp_path: Path, events: list[str]) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events, max_actor_ckpt_to_keep=1)
    save(trainer, 2)
    callback, trainer.actor_rollout_wg.failure = trainer.checkpoint_callback, RuntimeError("a worker's")
    with pytest.raises(RuntimeError, match="a worker's"):
        save(trainer, 4)
    assert trainer.checkpoint_callback is callback and trainer._saved_step == 2
    assert resume_folder(trainer.config) == tmp_path / "global_step_2"
    trainer.actor_rollout_wg.failure = None
    save(trainer, 4)
    assert resume_folder(trainer.config) == tmp_path / "global_step_4"
    assert not (tmp_path / "global_step_2").exists() and not (tmp_path / ASIDE).exists()


@pytest.mark.parametrize(
    ("settings", "left"),
    [({}, [2, 4, 6]), ({"max_actor_ckpt_to_keep": 2}, [4, 6]), ({"remove_previous_ckpt_in_save": True}, [6])],
)
def test_as_many_are_kept_as_verls_settings_say(
    tmp_path: Path, events: list[str], settings: dict[str, Any], left: list[int]
) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events, **settings)
    for step in (2, 4, 6):
        save(trainer, step)
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == [f"global_step_{step}" for step in left]


def test_a_fresh_start_and_an_earlier_step_give_up_what_came_later(tmp_path: Path, events: list[str]) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events)
    for step in (2, 4):
        save(trainer, step)
    path = str(tmp_path / "global_step_2")
    evaluated = make_trainer(ComplementarySync, tmp_path, events, resume_mode="disable", val_only=True)
    evaluated.take_back_marker()
    assert CheckpointFolders(tmp_path).latest() == tmp_path / "global_step_4"
    earlier = make_trainer(ComplementarySync, tmp_path, events, resume_mode="resume_path", resume_from_path=path)
    notes: list[str] = []
    earlier.take_back_marker(notes.append)
    earlier._load_checkpoint()
    assert earlier.global_steps == 2 and CheckpointFolders(tmp_path).latest() == tmp_path / "global_step_2"
    elsewhere = make_trainer(
        ComplementarySync, tmp_path / "other", events, resume_mode="resume_path", resume_from_path=path
    )
    elsewhere.take_back_marker()
    elsewhere._load_checkpoint()
    assert (elsewhere.global_steps, elsewhere._saved_step) == (2, -1) and not (tmp_path / "other").exists()
    fresh = make_trainer(ComplementarySync, tmp_path, events, resume_mode="disable")
    fresh.take_back_marker(notes.append)
    fresh._load_checkpoint()
    assert fresh.global_steps == 0 and CheckpointFolders(tmp_path).latest() is None
    lines = [
        f"again after step {step} and gives up its checkpoints of {given_up};"
        for step, given_up in [(2, [4]), (0, [2])]
    ]
    assert [line in note for line, note in zip(lines, notes, strict=True)] == [True, True]


def test_the_content_of_a_checkpoint_is_compared_before_it_is_resumed(tmp_path: Path, events: list[str]) -> None:
    trainer = make_trainer(ComplementarySync, tmp_path, events)
    trainer.actor_rollout_wg.size = 1000
    for step in (2, 4):
        save(trainer, step)
    weights = tmp_path / "global_step_4" / "actor" / "model_world_size_1_rank_0.pt"
    content = weights.read_bytes()
    weights.write_bytes(content.replace(torch.ones(100).numpy().tobytes(), bytes(400)))
    assert weights.stat().st_size == len(content)
    assert resume_folder(trainer.config) == tmp_path / "global_step_2"
    trainer.config.trainer.update(resume_mode="resume_path", resume_from_path=str(tmp_path / "global_step_4"))
    with pytest.raises(
        TornCheckpoint, match=r"model_world_size_1_rank_0\.pt is damaged: \S+ does not have its checksum"
    ):
        resume_folder(trainer.config)


def test_a_torn_checkpoint_that_is_asked_for_is_refused(tmp_path: Path, events: list[str]) -> None:
    save(make_trainer(ComplementarySync, tmp_path, events), 2)
    (tmp_path / "global_step_2" / "data.pt").write_bytes(b"")
    with pytest.raises(TornCheckpoint, match=r"resume_from_path=\S*global_step_2 is torn: data.pt has 0 bytes instead"):
        make_trainer(
            ComplementarySync,
            tmp_path,
            events,
            resume_mode="resume_path",
            resume_from_path=str(tmp_path / "global_step_2"),
        )
