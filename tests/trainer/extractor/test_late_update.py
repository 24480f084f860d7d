"""An update of the extractor that takes longer than its limit: real threads, and workers that wait for a gate."""

import threading
import time
from typing import Any

import pytest
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_comprl.errors import WaitTimeout
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.servers.serving import Serving


class Workers:
    """One optimizer step per call, which waits for ``gate``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.steps = 0
        self.failure: Exception | None = None
        self._dispatch_info = {"actor": [0]}

    def update_actor(self, data: TensorDict) -> TensorDict:
        self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.steps += 1
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"actor/loss": [float(self.steps)]}})


class Servers:
    """verl's manager of servers; writes down the versions that reach them."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.replicas: list[Any] = []
        self.backend = "naive"

    def update_weights(self, version: int) -> None:
        self.versions.append(version)

    def resume_generation_replicas(self) -> None: ...

    def abort_replicas(self) -> None: ...


@pytest.fixture
def batch(make_record: Any) -> TrainingBatch:
    return TrainingBatch([make_record("a"), make_record("b")], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0])


@pytest.fixture
def runtime() -> Any:
    """An extractor with slots of its own, whose servers have version 0."""
    model = {"actor": {"data_loader_seed": 1}, "rollout": {"temperature": 1.0}}
    runtime: Any = object.__new__(ExtractorRuntime)
    runtime.config = OmegaConf.create({"actor_rollout_ref": model})
    runtime.workers, runtime.servers = Workers(), Servers()
    runtime.weight_version, runtime._updating, runtime._work_timeout = 0, None, 10
    runtime.serving = Serving(runtime.servers, shares_memory=False)
    runtime.publish_weights()
    runtime._work_timeout = 0.05
    return runtime


def finished(runtime: Any) -> None:
    deadline = time.monotonic() + 10
    while runtime.weight_version == 0 and time.monotonic() < deadline:
        time.sleep(0.005)


def test_an_update_in_time_gives_its_metrics(runtime: Any, batch: TrainingBatch) -> None:
    runtime.workers.gate.set()
    runtime._work_timeout = 10
    assert runtime.update(batch) == {"loss": 1.0} and runtime.weight_version == 1
    runtime.wait_for_late_update()  # there is none


def test_a_late_update_is_waited_for_and_its_weights_reach_the_servers(runtime: Any, batch: TrainingBatch) -> None:
    with pytest.raises(WaitTimeout, match="the extractor's workers to update"):
        runtime.update(batch)
    assert runtime.weight_version == 0
    for _ in range(2):
        with pytest.raises(WaitTimeout, match="the extractor's workers to update"):
            runtime.wait_for_late_update()
    runtime.workers.gate.set()
    finished(runtime)
    runtime._work_timeout = 10
    runtime.wait_for_late_update()
    assert (runtime.workers.steps, runtime.weight_version, runtime.servers.versions) == (1, 1, [0])
    for _ in range(2):
        runtime.restore()
    assert runtime.servers.versions == [0, 1]


def test_a_late_update_that_fails_is_told_once(runtime: Any, batch: TrainingBatch) -> None:
    with pytest.raises(WaitTimeout):
        runtime.update(batch)
    runtime.workers.failure = MemoryError("out of memory")
    runtime.workers.gate.set()
    runtime._work_timeout = 10
    with pytest.raises(MemoryError):
        runtime.wait_for_late_update()
    runtime.wait_for_late_update()
    runtime.restore()
    assert (runtime.weight_version, runtime.servers.versions) == (0, [0])
