"""Checkpoints of a run whose extractor's engine has died or hangs; engine and manager are fakes, the files are real."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.ranks import RanksApart
from verl_comprl.trainer import experience_runtime, manager_guard
from verl_comprl.trainer.checkpoint.contents import STATE_FILE
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.late_reports import LateReports
from verl_comprl.trainer.manager_guard import ManagerGuard


class Engine:
    """Writes its version, unless ``failure`` is set."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.weight_version = 3
        self.work_is_late = False
        self.failure: Exception | None = None
        self.saves = 0

    def save(self, folder: Path) -> None:
        self.saves += 1
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part").write_text("torn" if self.failure else f"version {self.weight_version}")
        if self.failure:
            raise self.failure


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def save(folder: str) -> int:
        Path(folder).mkdir(parents=True)
        return 0

    manager = SimpleNamespace(save=SimpleNamespace(remote=save), is_connected=SimpleNamespace(remote=lambda: True))
    monkeypatch.setattr(manager_guard, "wait_for", lambda result, seconds, what: result)
    runtime: Any = object.__new__(ExperienceRuntime)
    runtime._comprl = SimpleNamespace(work_timeout=5.0)
    runtime._config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    runtime.extractor, runtime.manager = Engine(), manager
    runtime._guard = ManagerGuard(manager, lambda: None)
    runtime._learner = SimpleNamespace(given_up=False, metrics=dict, longest=3600.0)
    runtime._late_reports = LateReports()
    runtime._checkpoints, runtime._extractor_saves_failed, runtime._was_left_out = [], 0, False
    return runtime


def saved(runtime: Any, folder: Path, step: int, is_stopped: Callable[[], bool] = lambda: False) -> tuple[str, int]:
    """Save as the trainer does, and return what the extractor's part of the checkpoint has: text and version."""
    written = folder / f"global_step_{step}"
    runtime.save(written, step, is_stopped)
    runtime.note_checkpoint(written)
    state = json.loads((written / STATE_FILE).read_text())
    assert state["step"] == step and (written / "comprl").is_dir()
    return (written / "extractor" / "part").read_text(), state["extractor_weight_version"]


def saves_failed(runtime: Any) -> float:
    return runtime._learned()["comprl/extractor/saves_failed"]


@pytest.mark.parametrize(
    "failure", [ActorDiedError(), WaitTimeout("the extractor's workers to save", 5), RanksApart("others wait")]
)
def test_a_dead_engine_costs_what_it_learned_since_the_latest_checkpoint(
    runtime: Any, tmp_path: Path, failure: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert saved(runtime, tmp_path, 1) == ("version 3", 3)
    runtime.extractor.weight_version, runtime.extractor.failure = 7, failure
    for step in (2, 3):
        assert saved(runtime, tmp_path, step) == ("version 3", 3)
        assert saves_failed(runtime) == step - 1
    assert "the checkpoint gets that of global_step_2" in capsys.readouterr().out
    assert not runtime.extractor.lock._is_owned()


def test_an_engine_that_writes_after_all_does_not_write_into_the_extractor_that_was_taken(
    runtime: Any, tmp_path: Path
) -> None:
    saved(runtime, tmp_path, 1)
    runtime.extractor.failure = WaitTimeout("the extractor's workers to save", 5)
    manager_saves, engine_saves, folders = runtime.manager.save.remote, runtime.extractor.save, []

    def save_engine(folder: Path) -> None:
        folders.append(folder)
        engine_saves(folder)

    def save_manager(folder: str) -> int:
        runtime.extractor.failure, runtime.extractor.weight_version = None, 9
        engine_saves(folders[0])  # the late worker
        return manager_saves(folder)

    runtime.extractor.save, runtime.manager.save.remote = save_engine, save_manager
    assert saved(runtime, tmp_path, 2) == ("version 3", 3)
    assert {path.name for path in (tmp_path / "global_step_2").iterdir()} == {"extractor", "comprl", STATE_FILE}


def test_a_manager_that_dies_meanwhile_saves_again_and_the_extractor_does_not(runtime: Any, tmp_path: Path) -> None:
    begun_again, save, states = [], runtime.manager.save.remote, [False]

    def die_once(folder: str) -> int:
        assert runtime.extractor.lock._is_owned(), "an update in between would be in one part only"
        if not begun_again:
            raise ActorDiedError
        return save(folder)

    def begin_again() -> None:
        begun_again.append("manager")

    runtime.manager.save.remote = die_once
    runtime.manager.is_connected.remote = lambda: states.pop()
    runtime._guard = ManagerGuard(runtime.manager, begin_again)
    assert saved(runtime, tmp_path, 1) == ("version 3", 3)
    assert (begun_again, runtime.extractor.saves, saves_failed(runtime)) == (["manager"], 1, 0)


def test_episodes_that_the_manager_cannot_read_from_its_disk_are_missing_once(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next checkpoint is written without them if they still cannot be read."""
    save, unread = runtime.manager.save.remote, iter([2, 2, 0, 1])
    runtime.manager.save.remote = lambda folder: save(folder) or next(unread)
    found = [runtime.save(tmp_path / f"global_step_{step}", step) for step in (1, 2, 3, 4)]
    two, one = "2 episodes that wait", "1 episode that waits"
    cannot = "on the manager's disk cannot be read at present"
    assert found == [f"{two} {cannot}", "", "", f"{one} {cannot}"]
    assert capsys.readouterr().out == f"the checkpoint of step 2 is written nevertheless: {two} {cannot}\n"


def test_without_an_earlier_one_there_is_no_checkpoint(runtime: Any, tmp_path: Path) -> None:
    runtime.extractor.failure = ActorDiedError()
    with pytest.raises(ActorDiedError):
        saved(runtime, tmp_path, 1)
    assert not (tmp_path / "global_step_1" / STATE_FILE).exists()


@pytest.mark.parametrize("given_up", [False, True])
def test_another_failure_counts_only_when_the_extractor_was_given_up(
    runtime: Any, tmp_path: Path, given_up: bool
) -> None:
    """It may be one that passes, as a disk that is full."""
    saved(runtime, tmp_path, 1)
    runtime.extractor.failure, runtime._learner.given_up = RuntimeError("CUDA error"), given_up
    if given_up:
        assert saved(runtime, tmp_path, 2) == ("version 3", 3)
    else:
        with pytest.raises(RuntimeError, match="CUDA error"):
            saved(runtime, tmp_path, 2)


def test_an_engine_that_hangs_is_not_waited_for(runtime: Any, tmp_path: Path) -> None:
    saved(runtime, tmp_path, 1)
    runtime.extractor.work_is_late = True
    assert saved(runtime, tmp_path, 2) == ("version 3", 3) and runtime.extractor.saves == 1
    runtime.extractor.work_is_late = False
    assert saved(runtime, tmp_path, 3) == ("version 3", 3) and runtime.extractor.saves == 2


@contextmanager
def updating(runtime: Any, seconds: float = 40.0) -> Iterator[None]:
    """Let another thread hold the extractor, at most to the end of the block, and make version 4 then."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with runtime.extractor.lock:
            taken.set()
            done.wait(seconds)
            runtime.extractor.weight_version = 4

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(10)
    try:
        yield
    finally:
        done.set()
        holder.join()


def test_a_learner_that_holds_the_extractor_too_long_does_not_end_the_run(runtime: Any, tmp_path: Path) -> None:
    saved(runtime, tmp_path, 1)
    runtime._comprl.work_timeout = 0.05
    with updating(runtime):
        assert saved(runtime, tmp_path, 2) == ("version 3", 3)


@pytest.mark.parametrize("moment", [0.0, 1.5])
def test_the_checkpoint_of_a_stop_does_not_wait_long_for_a_running_update(
    runtime: Any, tmp_path: Path, moment: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the request comes while a checkpoint waits already; what is lost is said and counted."""
    saved(runtime, tmp_path, 1)
    monkeypatch.setattr(experience_runtime, "STOP_SECONDS", 0.3)
    runtime._comprl.work_timeout, started = 3600.0, time.monotonic()
    with updating(runtime):
        assert saved(runtime, tmp_path, 2, lambda: time.monotonic() - started > moment) == ("version 3", 3)
        assert max(moment, 0.3) <= time.monotonic() - started < 30
    assert saves_failed(runtime) == 1 and "gets that of global_step_1: WaitTimeout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("longest", "expected"), [(0.1, ("version 3", 3)), (5.0, ("version 4", 4)), (0.0, ("version 4", 4))]
)
def test_an_update_that_takes_much_longer_than_any_before_holds_no_checkpoint(
    runtime: Any, tmp_path: Path, longest: float, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(runtime, tmp_path, 1)
    monkeypatch.setattr(experience_runtime, "STOP_SECONDS", 0.1)
    runtime._comprl.work_timeout, runtime._learner.longest = 3600.0, longest
    with updating(runtime, 1.5):
        assert saved(runtime, tmp_path, 2) == expected


@pytest.mark.parametrize(("has_earlier", "is_stopped"), [(False, True), (True, False)])
def test_without_a_stop_or_without_an_earlier_one_the_update_is_waited_for(
    runtime: Any, tmp_path: Path, has_earlier: bool, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop would have no checkpoint otherwise, instead of an older extractor in it."""
    if has_earlier:
        saved(runtime, tmp_path, 1)
    monkeypatch.setattr(experience_runtime, "STOP_SECONDS", 0.1)
    runtime._comprl.work_timeout = 3600.0
    with updating(runtime, 1.5):
        assert saved(runtime, tmp_path, 2, lambda: is_stopped) == ("version 4", 4)
    assert saves_failed(runtime) == 0
