"""The host with environments that hang, or fail in the middle of an episode, in real processes and threads."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hosted import BOTH, PROCESS, THREAD, gone, hurried, play

from env_adapters.host import EnvironmentFailure, EnvironmentHost, Limits

MakeHost = Callable[..., EnvironmentHost]


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        (PROCESS, "raise", "RuntimeError: raised on command"),
        (THREAD, "raise", "RuntimeError: raised on command"),
        (PROCESS, "hang", r"step\(\) did not return within 0\.5 s"),
        (THREAD, "wait", r"step\(\) did not return within 0\.5 s"),
    ],
)
async def test_a_failure_affects_only_its_episode(
    make_host: MakeHost, released: threading.Event, name: str, action: str, message: str
) -> None:
    host = make_host()

    async def fail() -> None:
        async with host.session(name, {}) as session:
            await session.reset(1)
            await session.step("fine")
            with hurried(session):
                await session.step(action)

    others = [play(host, name, *["fine"] * 20, seed=seed) for seed in range(4)]
    *good, failure = await asyncio.gather(*others, fail(), return_exceptions=True)
    assert isinstance(failure, EnvironmentFailure)
    with pytest.raises(EnvironmentFailure, match=message):
        raise failure
    assert good == [[f"seed {seed}", *["fine"] * 20] for seed in range(4)]
    assert host.counts["failed"] == 1
    assert await play(host, name, "fine") == ["seed 1", "fine"]


@pytest.mark.parametrize(
    ("name", "action"), [(PROCESS, "raise"), (THREAD, "raise"), (PROCESS, "hang"), (THREAD, "wait")]
)
async def test_a_failure_that_the_caller_catches_breaks_the_session(
    make_host: MakeHost, released: threading.Event, name: str, action: str
) -> None:
    host = make_host()
    async with host.session(name, {}) as session:
        await session.reset(1)
        with pytest.raises(EnvironmentFailure, match=r"0\.5 s|raised on command"), hurried(session):
            await session.step(action)
        for call in (session.step("fine"), session.truncate(), session.reset(2)):
            with pytest.raises(EnvironmentFailure, match="was called after the environment had failed"):
                await call
    assert host.counts == {"made": 1, "failed": 1}
    # A worker that was kept would answer this with what the last episode left.
    assert await play(host, name, "fine", seed=3) == ["seed 3", "fine"]


async def test_a_hanging_process_is_killed(make_host: MakeHost) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match="did not return"):
        async with host.session(PROCESS, {}) as session:
            await session.reset(1)
            pid = int((await session.step("pid"))[0])
            with hurried(session):
                await session.step("hang")
    assert host.counts == {"made": 1, "failed": 1}
    assert gone(pid)


async def test_an_environment_that_hangs_in_reset_fails_cleanly(make_host: MakeHost) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match=r"reset\(\) did not return"):
        async with host.session(PROCESS, {"fails": "reset"}) as session:
            with hurried(session):
                await session.reset(1)
    assert host.counts["failed"] == 1


async def test_closing_does_not_wait_for_an_environment_that_hangs_in_close(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    pid = int((await play(host, PROCESS, "pid", fails="close"))[-1])
    started = time.monotonic()
    await host.close()
    assert time.monotonic() - started < 60 and gone(pid)


async def test_an_episode_has_a_time_limit_of_its_own(make_host: MakeHost) -> None:
    host = make_host(limits=Limits(episode=0.5))
    with pytest.raises(EnvironmentFailure, match=r"episode was not over within 0.5 s"):
        async with host.session(THREAD, {}) as session:
            await session.reset(1)
            await asyncio.sleep(10)  # stands for a slow model
    assert host.counts["failed"] == 1


async def test_a_timeout_of_the_caller_is_not_converted(make_host: MakeHost) -> None:
    host = make_host()
    with pytest.raises(TimeoutError):
        async with host.session(THREAD, {}), asyncio.timeout(0.05):
            await asyncio.sleep(10)


@pytest.mark.parametrize("changes", [{"step": 0}, {"reset": -1.0}, {"episode": float("nan")}, {"characters": 0}])
def test_a_bad_limit_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ValueError, match=f"limit {name} must be positive"):
        Limits(**changes)


@BOTH
async def test_long_texts_lose_their_middle(make_host: MakeHost, name: str) -> None:
    host = make_host(limits=Limits(characters=4))
    async with host.session(name, {}) as session:
        observation, info = await session.reset(1)
        assert observation == "se\n[... 2 characters left out ...]\n 1"
        assert info["goal"] == "Mi\n[... 6 characters left out ...]\ne."
        assert (await session.step("fine"))[0] == "fine"
        observation, *_, info = await session.truncate()
    assert "characters left out" in observation and "characters left out" in info["goal"]
