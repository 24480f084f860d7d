"""Actors that die or stop while a batch is waited for, in a real Ray."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors
from verl_comprl.trainer.watchdog.situation import situation

pytestmark = pytest.mark.run


@ray.remote
class Player:
    """An actor that may be busy."""

    def pid(self) -> int:
        return os.getpid()

    def work(self) -> None:
        time.sleep(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture
def players(cluster: None) -> Iterator[dict[str, Any]]:
    make: Any = Player  # Ray's decorator has no types for classes
    made: dict[str, Any] = {f"player {number}": make.remote() for number in range(2)}
    yield made
    for player in made.values():
        ray.kill(player)


def checked(vital: VitalActors, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        vital.check()
        time.sleep(0.05)


def wait_for_death(pid: int) -> None:
    """Wait for what ``ray.kill`` has begun: on a busy machine the process may answer once more."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("busy", [False, True])
def test_a_death_is_an_error_within_seconds_that_names_the_actor(players: dict[str, Any], busy: bool) -> None:
    vital = VitalActors()
    vital.watch(players)
    pid: Any = ray.get(players["player 1"].pid.remote())
    if busy:
        players["player 1"].work.remote()
    checked(vital, 3)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessLost, match=r"player 1 has died, so the run cannot go on"):
        checked(vital, 20)


@pytest.mark.timeout(300)
def test_a_process_that_ray_kills_for_memory_is_dead(tmp_path: Path) -> None:
    """Ray raises another class of error for it. In a process of its own, whose Ray takes little for a full machine."""
    program = """
        import sys, time
        import ray
        from ray.exceptions import RayActorError
        from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors

        @ray.remote
        class Player:
            def fill(self):
                self.held = b"x" * (3 << 30)

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
        player, vital = Player.remote(), VitalActors()
        ray.get(player.__ray_ready__.remote())
        vital.watch({"player": player})
        player.fill.remote()
        end = time.monotonic() + 120
        try:
            while time.monotonic() < end:
                vital.check()
                time.sleep(0.05)
        except ProcessLost as lost:
            print(isinstance(lost.__cause__, RayActorError), lost)
    """
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 1.5 * 2**30) / memory.total  # room for Ray, and half of what is filled
    environment = os.environ | {"RAY_memory_usage_threshold": str(limit), "RAY_memory_monitor_refresh_ms": "50"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert "False player has died, so the run cannot go on: " in done.stdout, done.stdout + done.stderr


def test_what_fails_because_of_a_death_is_blamed_on_it_and_nothing_else_is(players: dict[str, Any]) -> None:
    pid: Any = ray.get(players["player 0"].pid.remote())
    vital, error = VitalActors(), RuntimeError("no rollouts")
    vital.watch(players)
    vital.blame(error)
    vital.check()
    time.sleep(1)  # all have answered, and nobody has read it
    ray.kill(players["player 0"])
    wait_for_death(pid)
    with pytest.raises(ProcessLost, match="player 0 has died") as lost:
        vital.blame(error)
    assert lost.value.__cause__ is error


def test_actors_of_the_run_before_are_forgotten(players: dict[str, Any]) -> None:
    vital = VitalActors()
    vital.watch(players)
    checked(vital, 0.2)
    vital.watch({"player 0": players["player 0"]})
    ray.kill(players["player 1"])
    checked(vital, 5)


def all_answer(trainer: Any) -> None:
    """Wait until both processes answer, which may take them longer on a busy machine than they are given."""
    deadline = time.monotonic() + 30
    while (said := list(situation(trainer))) != ["2 of 2 processes answer"]:
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def test_a_process_that_is_stopped_is_said_not_to_answer_until_it_goes_on(players: dict[str, Any]) -> None:
    """The servers of a run stand for all its processes."""
    replica = SimpleNamespace(servers=[*players.values()])
    servers = SimpleNamespace(replicas=[replica])
    trainer = SimpleNamespace(checkpoint_manager=servers, experience_runtime=NoExperienceRuntime())
    _, pid = ray.get([player.pid.remote() for player in players.values()])
    all_answer(trainer)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert list(situation(trainer)) == ["the actor's server 1: does not answer", "1 of 2 processes answer"]
    finally:
        os.kill(pid, signal.SIGCONT)
    all_answer(trainer)


def test_asking_never_waits(players: dict[str, Any]) -> None:
    vital = VitalActors()
    vital.watch(players)
    for player in players.values():
        player.work.remote()
    slowest = 0.0
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        started = time.perf_counter()
        vital.check()
        slowest = max(slowest, time.perf_counter() - started)
        time.sleep(0.05)
    assert slowest < 8.0
