"""Locks of the driver are taken in one order, so that no two threads wait for each other: all but Ray is real."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError

from verl_comprl.extractor.buffer import TrainingBuffer
from verl_comprl.trainer import manager_guard
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.extractor import learner as learner_module
from verl_comprl.trainer.extractor.learner import ExtractorLearner
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.late_reports import LateReports
from verl_comprl.trainer.manager_guard import ManagerGuard
from verl_comprl.trainer.servers.serving import Serving

Order = set[tuple[str, str]]


class WatchedLock:
    """A lock that notes which others its thread holds when it takes it."""

    _held = threading.local()

    def __init__(self, name: str, lock: Any, order: Order) -> None:
        self._name, self._lock, self._order = name, lock, order

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            held = vars(self._held).setdefault("names", [])
            self._order.update((name, self._name) for name in held if name != self._name)
            held.append(self._name)
        return taken

    def release(self) -> None:
        self._held.names.remove(self._name)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Run:
    """Learner, servers, guard and checkpoint of a run whose manager can be killed; takes note of the locks."""

    def __init__(self, folder: Path, make_record: Callable[..., Any]) -> None:
        self.order: Order = set()
        self.events: list[str] = []
        self.is_there = True
        buffer = TrainingBuffer(2, alpha=0.5, cooldown=1)
        for id, reward in (("a", 1.0), ("b", -1.0)):
            buffer.add(make_record(id))
            buffer.record_reward(id, reward)
        buffer.collect()
        extractor: Any = object.__new__(ExtractorRuntime)
        control: Any = SimpleNamespace(replicas=[])
        for name in ("abort_replicas", "sleep_replicas", "update_weights", "resume_generation_replicas"):
            setattr(control, name, lambda *_: time.sleep(0.01))
        serving: Any = Serving(control, shares_memory=True)
        serving.publish(0, 5)
        serving._telling = WatchedLock("telling", threading.Lock(), self.order)
        serving.tell = lambda there: self.events.append("back" if there else "away")
        extractor.serving = serving
        extractor.lock = WatchedLock("extractor", threading.RLock(), self.order)
        extractor.weight_version, extractor._updating, extractor._update_timeout = 0, None, 5.0
        extractor.update, extractor.save = self._update, self._save_extractor
        self.extractor = extractor
        self.manager: Any = SimpleNamespace(
            next_batch=SimpleNamespace(remote=lambda version: buffer.next_batch(1, version)),
            trained=SimpleNamespace(remote=buffer.trained),
            is_connected=SimpleNamespace(remote=lambda: self.is_there),
            save=SimpleNamespace(remote=self._save),
        )
        runtime: Any = object.__new__(ExperienceRuntime)
        runtime._comprl = SimpleNamespace(work_timeout=5.0)
        runtime._config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})
        runtime.extractor, runtime.manager = extractor, self.manager
        guard: Any = ManagerGuard(self.manager, self._restart_manager)
        guard._lock = WatchedLock("guard", threading.Lock(), self.order)
        runtime._guard = guard
        runtime._learner = ExtractorLearner(extractor, self.manager, max_failures=5)
        runtime._checkpoints, runtime._extractor_saves_failed = [], 0
        runtime._late_reports = LateReports()
        self.runtime = runtime

    def _update(self, batch: Any) -> dict[str, float]:
        time.sleep(0.05)
        self.extractor.weight_version += 1
        self.events.append("update")
        return {"grad_norm": 1.0}

    def _save_extractor(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def _save(self, folder: str) -> None:
        if not self.is_there:
            raise ActorDiedError
        Path(folder).mkdir(parents=True)

    def _restart_manager(self) -> None:
        self.extractor.serving.tell_again()
        self.is_there = True
        self.events.append("begun again")


@pytest.fixture
def run(tmp_path: Path, make_record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Run:
    for module in (learner_module, manager_guard):
        monkeypatch.setattr(module, "wait_for", lambda result, seconds, what: result)
    monkeypatch.setattr(manager_guard, "LOOK_SECONDS", 0.01)
    return Run(tmp_path, make_record)


def test_the_extractor_s_lock_comes_before_the_guard_s_and_that_before_the_one_of_telling(
    run: Run, tmp_path: Path
) -> None:
    run.runtime._learner.take_turn(10)
    assert run.events == ["away", "update", "back"] and run.order == {("extractor", "telling")}
    run.is_there = False
    run.runtime.save(tmp_path / "global_step_1", 1)
    assert run.events[3:] == ["begun again"]
    assert run.order == {("extractor", "telling"), ("extractor", "guard"), ("guard", "telling")}


def test_an_update_a_killed_manager_and_a_checkpoint_at_a_time_all_end(run: Run, tmp_path: Path) -> None:
    run.is_there = False
    run.runtime._guard.start()
    run.runtime._learner.start()
    saving = threading.Thread(target=lambda: run.runtime.save(tmp_path / "global_step_1", 1), daemon=True)
    saving.start()
    saving.join(20)
    assert not saving.is_alive() and (tmp_path / "global_step_1" / "comprl.json").exists()
    deadline = time.monotonic() + 20
    while "update" not in run.events and time.monotonic() < deadline:
        time.sleep(0.01)
    run.runtime._learner.stop(20)
    run.runtime._guard.stop(20)
    assert run.events.count("begun again") == 1 and run.events.count("update") == 1
    assert not {(after, before) for before, after in run.order} & run.order
