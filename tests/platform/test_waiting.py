"""Waits with a limit, on real threads, locks and Ray actors."""

import ast
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import verl_comprl
from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.waiting import call_within, holding, result_within, wait_for


def test_a_call_that_ends_in_time_gives_its_result_or_its_error() -> None:
    assert call_within(lambda: 7, 5, "a number") == 7
    with pytest.raises(KeyError, match="door"):
        call_within(lambda: {}["door"], 5, "a door")

    def impatient() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as caught:
        call_within(impatient, 5, "something impatient")
    assert not isinstance(caught.value, WaitTimeout)


def test_a_call_that_hangs_is_left_behind_and_the_error_says_what_and_how_long() -> None:
    gate, started = threading.Event(), time.monotonic()
    with pytest.raises(WaitTimeout, match=r"^waited 0\.05 s for the workers to save$") as caught:
        call_within(gate.wait, 0.05, "the workers to save")
    assert (caught.value.what, caught.value.seconds) == ("the workers to save", 0.05)
    assert time.monotonic() - started < 5
    gate.set()


def test_a_call_that_ends_when_its_time_is_over_counts() -> None:
    class Late(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().result()
            self.set_result(7)
            raise TimeoutError

    assert result_within(Late(), 1, "a number") == 7


def test_a_lock_is_waited_for_and_given_back() -> None:
    lock = threading.RLock()
    with pytest.raises(KeyError), holding(lock, 1, "an update"):
        raise KeyError
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    with pytest.raises(WaitTimeout, match="an update"), holding(lock, 0.05, "an update"):
        raise AssertionError("another thread has the lock")
    done.set()
    holder.join()
    with holding(lock, 1, "an update"):
        pass


def calls_without_limit(source: str) -> list[str]:
    """Return the calls of Ray's waits in a module that have no time-out."""
    return [
        ast.unparse(call)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("ray.get", "ray.wait")
        and "timeout" not in [keyword.arg for keyword in call.keywords]
    ]


def test_every_wait_for_ray_has_a_limit() -> None:
    """Those without one are for references that ``ray.wait`` has just found to be ready."""
    package = Path(verl_comprl.__file__).parent
    found = {
        path.relative_to(package).as_posix(): calls
        for path in package.rglob("*.py")
        if (calls := calls_without_limit(path.read_text(encoding="utf-8")))
    }
    assert calls_without_limit("ray.get(a); ray.get(a, timeout=1); ray.wait([a])") == ["ray.get(a)", "ray.wait([a])"]
    assert found == {
        "trainer/watchdog/situation.py": ["ray.get(reference)"],
        "trainer/watchdog/liveness.py": ["ray.get(reference)"],
        "trainer/watchdog/counting.py": ["ray.get(answered)"],
    }


@pytest.mark.run
def test_an_actor_that_sleeps_is_waited_for_no_longer_than_the_limit() -> None:
    import ray
    from ray.exceptions import RayTaskError

    class Sleeper:
        def sleep(self, seconds: float) -> str:
            time.sleep(seconds)
            return "awake"

        def fail(self) -> None:
            raise TimeoutError("of the actor")

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        sleeper: Any = ray.remote(Sleeper).remote()
        assert wait_for([sleeper.sleep.remote(0), sleeper.sleep.remote(0)], 60, "two") == ["awake", "awake"]
        with pytest.raises(RayTaskError) as raised:
            wait_for(sleeper.fail.remote(), 60, "a failure")
        assert not isinstance(raised.value, WaitTimeout)
        started = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"waited 0\.2 s for the sleeper"):
            wait_for(sleeper.sleep.remote(30), 0.2, "the sleeper")
        assert time.monotonic() - started < 10
    finally:
        ray.shutdown()
