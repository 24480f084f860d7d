"""Time limits of episodes stand still while the servers pause: real event loops and short limits."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import GUIDE, MOVE_TURN, ScriptedManager, ScriptedServer, change_settings, play, row

from env_adapters.host import EnvironmentFailure, EnvironmentHost, Limits
from verl_comprl.manager.messages import Judgement
from verl_comprl.platform import pauses
from verl_comprl.platform.pauses import PausableClock, pause_episodes
from verl_comprl.trainer.trainer import ComplementaryColocateAsync


async def test_a_pause_does_not_count() -> None:
    clock = PausableClock()
    async with clock.timeout(0.5) as limit:
        clock.pause(True)
        await asyncio.sleep(0.8)
        clock.pause(False)
        for _ in range(2):  # one for the clock, one in which the limit would end the block
            await asyncio.sleep(0)
    assert not limit.expired()


async def test_what_was_left_before_a_pause_is_left_after_it() -> None:
    clock, loop = PausableClock(), asyncio.get_running_loop()
    async with clock.timeout(60) as limit:
        began, ends = loop.time(), limit.when()
        for _ in range(2):
            await asyncio.sleep(0.1)
            clock.pause(True)
            await asyncio.sleep(0)
            await asyncio.sleep(0.2)
            clock.pause(False)
            await asyncio.sleep(0)
        later = limit.when()
        assert ends is not None and later is not None
        assert 2 * 0.199 <= later - ends <= loop.time() - began - 2 * 0.099


async def test_a_limit_that_begins_in_a_pause_begins_with_its_end() -> None:
    clock = PausableClock()
    clock.pause(True)
    with pytest.raises(TimeoutError):
        async with clock.timeout(0.05):
            await asyncio.sleep(0.2)
            clock.pause(False)
            await asyncio.sleep(30)


async def test_limits_whose_blocks_are_over_are_forgotten() -> None:
    clock = PausableClock()
    limits = [clock.timeout(60) for _ in range(3)]
    for limit in limits[:2]:
        async with limit:
            pass
    async with limits[2]:
        for paused in (True, True, False, False):
            thread = threading.Thread(target=clock.pause, args=(paused,))
            thread.start()
            thread.join()
            await asyncio.sleep(0)
        assert list(clock._limits) == [limits[2]] and limits[2].when() is not None
    assert clock._paused is False


async def test_the_time_of_an_episode_stands_still() -> None:
    clock = PausableClock()
    host = EnvironmentHost(isolation="thread", limits=Limits(30, 30, 0.5), make_limit=clock.timeout)
    clock.pause(True)
    async with host.session("own_environments:Raising", {"method": "none"}):
        await asyncio.sleep(0.8)
    with pytest.raises(EnvironmentFailure, match="the episode was not over within"):
        async with host.session("own_environments:Raising", {"method": "none"}):
            clock.pause(False)
            await asyncio.sleep(30)
    await host.close()


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> PausableClock:
    """The clock of this process's episodes, in a pause."""
    clock = PausableClock()
    clock.pause(True)
    monkeypatch.setattr(pauses, "_clock", clock)
    return clock


class SlowServer(ScriptedServer):
    """Takes that many seconds to answer."""

    seconds = 0.4

    async def generate(self, request_id: str, **arguments: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return await super().generate(request_id, **arguments)


@pytest.mark.usefixtures("paused")
async def test_an_episode_outlasts_its_limit_where_the_servers_pause(make_loop: Any, tokenizer: Any) -> None:
    manager = ScriptedManager(GUIDE)
    loop = make_loop(SlowServer(tokenizer, [MOVE_TURN] * 3), manager)
    change_settings(loop, "environments", episode_timeout=SlowServer.seconds / 2)
    output = await play(loop, **row(2))
    assert output != [], "its rollout would be missing"
    report = manager.calls[-1][1][0]
    assert [turn.response for turn in report.request.turns] == [MOVE_TURN] * 3


async def test_an_episode_over_its_limit_without_a_pause_is_missing(
    make_loop: Any, tokenizer: Any, paused: PausableClock
) -> None:
    loop = make_loop(SlowServer(tokenizer, [MOVE_TURN] * 3), ScriptedManager(GUIDE))
    change_settings(loop, "environments", episode_timeout=SlowServer.seconds / 2)
    paused.pause(False)
    assert await play(loop, **row(2)) == []


@pytest.mark.parametrize(("pause", "verdict"), [(True, "accept"), (False, "late")])
async def test_a_critic_outlasts_its_limit_where_the_servers_pause(
    make_loop: Any, tokenizer: Any, paused: PausableClock, pause: bool, verdict: str
) -> None:
    """Without a pause its answer is too late."""
    turns = ["<verdict>accept</verdict>"] * pause + [MOVE_TURN] * 3  # one that is too late is not asked for
    manager = ScriptedManager(GUIDE)
    loop = make_loop(SlowServer(tokenizer, turns), manager)
    change_settings(loop, "actor_critic", enabled=True, timeout=SlowServer.seconds / 2)
    paused.pause(pause)
    await play(loop, **row(0))
    assert manager.calls[-1][1][0].judgement == Judgement(verdict, "record-1")


def test_the_trainer_stops_the_clocks_of_all_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    numbers: list[int] = []

    def told(paused: bool, number: int) -> None:
        events.append(f"clock {paused}")
        numbers.append(number)

    monkeypatch.setattr(pauses, "_clock", SimpleNamespace(told=told))

    def worker() -> Any:
        call = SimpleNamespace(remote=lambda function, *arguments: function(None, *arguments))
        return SimpleNamespace(**{"__ray_call__": call})

    class Servers:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: events.append(name)

    kind: Any = ComplementaryColocateAsync
    trainer = object.__new__(kind)
    trainer.agent_loop_manager = SimpleNamespace(agent_loop_workers=[worker(), worker()])
    trainer.experience_runtime = SimpleNamespace(pausing=(worker(),))  # the manager, if the actor answers questions
    trainer.checkpoint_manager, trainer.curr_step_profile = Servers(), False
    trainer.timing_raw, trainer.global_steps, trainer.stop = {}, 1, SimpleNamespace(made=False)
    trainer.on_sample_end()
    trainer.on_step_end()
    assert events == [
        *(["clock True"] * 3),
        *("abort_replicas", "sleep_replicas", "update_weights", "resume_generation_replicas"),
        *(["clock False"] * 3),
    ]
    assert len(set(numbers)) == 2 and numbers == sorted(numbers)
    pause_episodes([], True)


async def test_a_pause_that_arrives_after_its_end_has_no_effect() -> None:
    clock = PausableClock()
    clock.told(False, 2)
    clock.told(True, 1)
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.01):
                await asyncio.Event().wait()
