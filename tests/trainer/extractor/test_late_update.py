"""An update of the extractor that takes longer than its limit: real threads, and workers that wait for a gate."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.errors import UpdateMade, WaitTimeout
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.trainer.extractor import learner as learner_module
from verl_comprl.trainer.extractor import runtime as runtime_module
from verl_comprl.trainer.extractor.learner import LONGEST_BACKOFF, REST_FACTOR, ExtractorLearner
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.servers.serving import Serving, State

PATIENCE = 30.0
"""Seconds of a wait that must not be begun; ten of them are far longer than a busy machine takes for ten turns."""


class Workers:
    """One optimizer step per call, which waits for ``gate``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.steps = 0
        self.failure: Exception | None = None
        self._dispatch_info = {"actor": [0]}

    def update_actor(self, data: TensorDict) -> TensorDict:
        self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        self.steps += 1
        metrics = {"actor/loss": [float(self.steps)], "actor/grad_norm": [1.0]}
        return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})


class Servers:
    """verl's manager of servers; writes down the versions that reach them."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.orders: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.replicas: list[Any] = []
        self.backend = "naive"

    def update_weights(self, version: int) -> None:
        self.orders.append("sync")
        self.gate.wait(60)
        self.versions.append(version)

    def resume_generation_replicas(self) -> None:
        self.orders.append("resume")

    def abort_replicas(self) -> None:
        self.orders.append("abort")

    def sleep_replicas(self) -> None:
        self.orders.append("sleep")


@pytest.fixture
def batch(make_record: Any) -> TrainingBatch:
    return TrainingBatch([make_record("a"), make_record("b")], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0])


@pytest.fixture
def runtime() -> Any:
    """An extractor with slots of its own, whose servers have version 0."""
    model = {"actor": {"data_loader_seed": 1}, "rollout": {"temperature": 1.0}}
    runtime: Any = object.__new__(ExtractorRuntime)
    runtime.lock = threading.RLock()
    runtime.config = OmegaConf.create({"actor_rollout_ref": model})
    runtime.workers, runtime.servers = Workers(), Servers()
    runtime.weight_version, runtime._updating, runtime._work_timeout = 0, None, 10
    runtime.serving = Serving(runtime.servers, shares_memory=False)
    runtime.publish_weights()
    runtime._update_timeout, runtime.hurries = 0.05, lambda: False
    return runtime


def finished(runtime: Any) -> None:
    deadline = time.monotonic() + 10
    while runtime.weight_version == 0 and time.monotonic() < deadline:
        time.sleep(0.005)


def test_an_update_in_time_gives_its_metrics(runtime: Any, batch: TrainingBatch) -> None:
    runtime.workers.gate.set()
    runtime._update_timeout = 10
    assert runtime.update(batch) == {"loss": 1.0, "grad_norm": 1.0} and runtime.weight_version == 1
    runtime.wait_for_late_work()  # there is none


def test_an_update_that_was_made_and_then_failed_counts_and_its_weights_reach_the_servers(
    runtime: Any, batch: TrainingBatch
) -> None:
    runtime.workers.failure, runtime._update_timeout = UpdateMade("the weights were updated before this failed"), 10
    runtime.workers.gate.set()
    with pytest.raises(UpdateMade):
        runtime.update(batch)
    assert runtime.weight_version == 1
    runtime.restore()
    assert runtime.servers.versions == [0, 1]


def test_a_late_update_is_waited_for_and_its_weights_reach_the_servers(runtime: Any, batch: TrainingBatch) -> None:
    with pytest.raises(WaitTimeout, match="the extractor's workers to update"):
        runtime.update(batch)
    assert runtime.weight_version == 0
    for _ in range(2):
        with pytest.raises(WaitTimeout, match="the extractor's workers to update"):
            runtime.wait_for_late_work()
    runtime.workers.gate.set()
    finished(runtime)
    runtime._update_timeout = 10
    runtime.wait_for_late_work()
    assert (runtime.workers.steps, runtime.weight_version, runtime.servers.versions) == (1, 1, [0])
    for _ in range(2):
        runtime.restore()
    assert runtime.servers.versions == [0, 1]


def test_a_stop_does_not_wait_long_for_an_update(
    runtime: Any, batch: TrainingBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "STOP_SECONDS", 0.5)
    runtime._update_timeout, began = 60.0, time.monotonic()
    runtime.hurries = lambda: time.monotonic() - began > 1.0  # the request comes meanwhile
    with pytest.raises(WaitTimeout, match="the extractor's workers to update"):
        runtime.update(batch)
    assert 1.5 <= time.monotonic() - began < 30 and runtime.work_is_late


def test_an_update_that_ends_soon_after_a_stop_counts_however_long_it_has_taken(
    runtime: Any, batch: TrainingBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "STOP_SECONDS", 1.0)
    runtime._update_timeout, began = 60.0, time.monotonic()
    runtime.hurries = lambda: time.monotonic() - began > 1.1
    threading.Timer(1.3, runtime.workers.gate.set).start()
    assert runtime.update(batch)["loss"] == 1.0 and runtime.weight_version == 1


def test_a_late_update_that_fails_is_told_once(runtime: Any, batch: TrainingBatch) -> None:
    with pytest.raises(WaitTimeout):
        runtime.update(batch)
    runtime.workers.failure = MemoryError("out of memory")
    runtime.workers.gate.set()
    runtime._update_timeout = 10
    with pytest.raises(MemoryError):
        runtime.wait_for_late_work()
    runtime.wait_for_late_work()
    runtime.restore()
    assert (runtime.weight_version, runtime.servers.versions) == (0, [0])


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(learner_module, "time", clock)
    return clock


@pytest.fixture
def learner(
    runtime: Any, batch: TrainingBatch, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExtractorLearner]:
    """Takes turns on the actor's slots, where the servers sleep for an update; a batch always waits."""
    runtime.serving._shares_memory = True
    runtime.servers.orders.clear()
    monkeypatch.setattr(learner_module, "wait_for", lambda result, seconds, what: result)
    monkeypatch.setattr(learner_module, "update_metrics", lambda batch, version: {})
    calls = {"next_batch": lambda version: batch, "trained": lambda: None}
    manager = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})
    yield ExtractorLearner(runtime, manager, max_failures=2)
    runtime.workers.gate.set()
    runtime.servers.gate.set()


def turn(learner: ExtractorLearner, clock: Clock, *, after: float = 10_000.0) -> None:
    """Take a turn some time after the one before; no second update begins in it."""
    clock.now += after
    update = learner._update_once

    def once(may_begin: Callable[[], bool]) -> bool:
        clock.now += 60.0
        return update(may_begin)

    learner._update_once = once
    try:
        learner.take_turn(60.0)
    finally:
        learner._update_once = update


def turns_that_wait_for_nothing(runtime: Any, learner: ExtractorLearner, clock: Clock) -> None:
    runtime._update_timeout, orders, began = PATIENCE, len(runtime.servers.orders), time.monotonic()
    for _ in range(10):
        turn(learner, clock)
    assert time.monotonic() - began < PATIENCE and len(runtime.servers.orders) == orders


def failed(learner: ExtractorLearner) -> tuple[float, float]:
    metrics = learner.metrics()
    return metrics["comprl/extractor/failed"], metrics["comprl/extractor/given_up"]


def test_a_turn_waits_for_an_update_that_hangs_once_and_later_turns_do_not(
    runtime: Any, learner: ExtractorLearner, clock: Clock
) -> None:
    turn(learner, clock)
    assert failed(learner) == (1, 0) and runtime.serving.state is State.DOWN
    assert runtime.servers.orders == ["abort", "sleep"], "the worker that hangs was to copy its weights"
    turns_that_wait_for_nothing(runtime, learner, clock)
    assert failed(learner) == (1, 0)
    runtime.workers.gate.set()
    finished(runtime)
    turn(learner, clock)  # its own update is in time
    assert (runtime.weight_version, runtime.servers.versions) == (2, [0, 1, 2])
    assert runtime.serving.state is State.SERVING and failed(learner) == (1, 0)


def test_nor_do_they_wait_where_learning_has_stopped_and_the_servers_come_back_when_it_ends(
    runtime: Any, learner: ExtractorLearner, clock: Clock
) -> None:
    learner._max_failures = 1
    turn(learner, clock)
    assert failed(learner) == (1, 1) and runtime.is_down
    turns_that_wait_for_nothing(runtime, learner, clock)
    runtime.workers.gate.set()
    finished(runtime)
    turn(learner, clock)
    assert runtime.servers.versions == [0, 1] and runtime.serving.state is State.SERVING


def test_nor_do_they_wait_for_a_copy_of_weights_that_hangs(
    runtime: Any, learner: ExtractorLearner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.servers.gate.clear()
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "update", lambda batch: {"grad_norm": 1.0})
        turn(learner, clock)
    runtime.workers.gate.set()
    assert failed(learner) == (1, 0) and runtime.is_down and runtime.work_is_late
    turns_that_wait_for_nothing(runtime, learner, clock)
    runtime.servers.gate.set()
    runtime.serving.wait_for_late_transfer(PATIENCE)
    turn(learner, clock)
    assert failed(learner) == (1, 0) and runtime.serving.state is State.SERVING


def test_servers_that_hang_cost_the_actor_a_small_part_of_its_time(
    runtime: Any, learner: ExtractorLearner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.serving.state, learner._given_up, tried = State.DOWN, True, []

    def hang() -> None:
        tried.append(clock.now)
        clock.now += 300.0
        raise WaitTimeout("the extractor's servers", 300)

    monkeypatch.setattr(runtime, "restore", hang)
    for _ in range(100):
        turn(learner, clock, after=60.0)
    lost = 300.0 * len(tried)
    assert len(tried) > 1 and lost < 0.15 * (clock.now - tried[0])
    assert tried[1] - tried[0] >= LONGEST_BACKOFF + REST_FACTOR * 300.0


@pytest.mark.parametrize(
    ("placement", "slice_seconds", "work_timeout", "seconds"),
    [
        ("own", 60.0, 3600.0, 3600.0),
        ("split", 60.0, 3600.0, 3600.0),
        ("shared", 60.0, 3600.0, 600.0),
        ("shared", 0.1, 3600.0, 600.0),  # one update in each turn, which need not be short
        ("shared", 120.0, 3600.0, 1200.0),
        ("shared", 1000.0, 3600.0, 3600.0),
        ("shared", 60.0, 100.0, 100.0),
    ],
)
def test_an_update_in_a_turn_has_ten_times_its_length(
    placement: Any, slice_seconds: float, work_timeout: float, seconds: float
) -> None:
    extractor = ExtractorConfig(placement=placement, slice_seconds=slice_seconds)
    places = {"bank": BankConfig(path="-"), "queue": QueueConfig(folder="-")}
    assert ComprlConfig(**places, extractor=extractor, work_timeout=work_timeout).update_timeout == seconds
