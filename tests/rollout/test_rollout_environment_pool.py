"""Lending environments."""

import asyncio
import threading
from typing import ClassVar

import pytest

import env_adapters
from env_adapters import TextEnvironment
from env_adapters.base import Transition
from verl_comprl.rollout.environment_pool import EnvironmentPool


class Counting(TextEnvironment):
    thread_safe = True
    made = 0
    closed = 0
    threads: ClassVar[set[str]] = set()

    def __init__(self, *, max_turns: int = 5) -> None:
        super().__init__(max_turns=max_turns)
        type(self).made += 1

    def _start(self, seed, options):
        self.instructions, self.goal, self.task_id, self.admissible_actions = "", "goal", str(seed), ["go"]
        return "start"

    def _play(self, action):
        type(self).threads.add(threading.current_thread().name)
        return Transition("next")

    def close(self):
        type(self).closed += 1


class OwnProcess(Counting):
    thread_safe = False


@pytest.fixture(autouse=True)
def names(monkeypatch):
    monkeypatch.setattr("env_adapters.registry._registered", {})
    env_adapters.register("counting", Counting)
    env_adapters.register("own-process", OwnProcess)
    Counting.made = Counting.closed = 0
    Counting.threads = set()


async def test_an_environment_is_used_again_but_never_by_two_at_once():
    pool = EnvironmentPool()

    async def episode():
        async with pool.session("counting", {}) as environment:
            await environment.reset(1)
            await environment.step("go")

    for _ in range(3):
        await episode()
    assert Counting.made == 1
    await asyncio.gather(*(episode() for _ in range(4)))
    assert 1 < Counting.made <= 4
    assert all(name.startswith("environment") for name in Counting.threads)


async def test_options_separate_instances():
    pool = EnvironmentPool()
    for turns in (2, 3):
        async with pool.session("counting", {"max_turns": turns}):
            pass
    assert Counting.made == 2


async def test_an_environment_in_an_episode_that_failed_is_not_lent_again():
    pool = EnvironmentPool()
    with pytest.raises(RuntimeError, match="boom"):
        async with pool.session("counting", {}):
            raise RuntimeError("boom")
    assert Counting.closed == 1
    async with pool.session("counting", {}):
        pass
    assert Counting.made == 2


async def test_a_family_that_needs_its_own_process_is_refused():
    pool = EnvironmentPool()
    with pytest.raises(ValueError, match="must run in a process of its own"):
        async with pool.session("own-process", {}):
            pass
