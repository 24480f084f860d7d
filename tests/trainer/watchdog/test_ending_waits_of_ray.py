"""A main thread that waits for Ray without a limit is ended, in a real Ray."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.watchdog.ending import RunHung
from verl_comprl.trainer.watchdog.liveness import VitalActors
from verl_comprl.trainer.watchdog.watching import PHASES, watching

pytestmark = pytest.mark.run


@ray.remote
class Worker:
    """An actor whose work never ends."""

    def work(self) -> None:
        time.sleep(600)


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        make: Any = Worker  # Ray's decorator has no types for classes
        yield make.remote()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("wait", [ray.get, lambda reference: ray.wait([reference])], ids=["get", "wait"])
def test_a_call_that_does_not_return_is_left(worker: Any, wait: Callable[[Any], Any]) -> None:
    phases: dict[str, Any] = dict.fromkeys(PHASES, dict) | {"_update_actor": lambda: wait(worker.work.remote())}
    trainer = SimpleNamespace(
        comprl=SimpleNamespace(watchdog=SimpleNamespace(after=0.5, factor=1, end_after=0.5)),
        experience_runtime=NoExperienceRuntime(),
        vital=VitalActors(),
        replay_buffer=SimpleNamespace(),
        **phases,
    )
    started = time.monotonic()
    with pytest.raises(RunHung, match="update of the actor hangs"), watching(trainer, lambda _: None):
        trainer._update_actor()
    assert time.monotonic() - started < 60
