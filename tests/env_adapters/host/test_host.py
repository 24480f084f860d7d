"""The host with environments that raise, die or stay idle, in real processes and threads."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hosted import BOTH, PROCESS, THREAD, gone, play

import env_adapters
from env_adapters import registry
from env_adapters.host import EnvironmentFailure, EnvironmentHost, Limits
from env_adapters.host.process import ProcessWorker
from env_adapters.host.wire import encode

MakeHost = Callable[..., EnvironmentHost]


@BOTH
async def test_a_hosted_episode_equals_a_direct_one(make_host: MakeHost, name: str) -> None:
    host = make_host()
    here = env_adapters.make(name)
    async with host.session(name, {}) as session:
        assert await session.reset(7) == here.reset(seed=7)
        for action in ("fine", "", "\udc80\x00", '{"a": [1]}', "x" * 2**20):
            assert await session.step(action) == here.step(action)
        assert await session.truncate() == here.truncate()
    assert session.tools == []


@BOTH
async def test_a_worker_is_reused_but_never_shared(make_host: MakeHost, name: str) -> None:
    host = make_host()
    for _ in range(3):
        await play(host, name, "fine")
    assert host.counts == {"made": 1, "reused": 2}
    await asyncio.gather(*(play(host, name, "sleep") for _ in range(3)))
    assert host.counts["made"] == 3
    await play(host, name, max_turns=7)
    assert host.counts["made"] == 4, "other options need another environment"


async def test_only_thread_safe_environments_share_the_process(make_host: MakeHost) -> None:
    host = make_host()
    assert (await play(host, THREAD, "pid"))[-1] == str(os.getpid())
    assert (await play(host, PROCESS, "pid"))[-1] != str(os.getpid())
    assert (await play(make_host(isolation="process"), THREAD, "pid"))[-1] != str(os.getpid())


@BOTH
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("nan", "the reward is nan"),
        ("inf", "the reward is inf"),
        ("1e39", "the reward is 1e\\+39, which is not finite as a float32"),
        ("unscored", "the score is nan"),
        ("many", "too large to convert"),
        ("much", "must be real number, not str"),
    ],
)
async def test_a_number_that_cannot_be_learned_from_is_a_failure(
    make_host: MakeHost, name: str, action: str, message: str
) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match=message):
        await play(host, name, "fine", action)
    assert host.counts["failed"] == 1
    assert await play(host, name, "fine") == ["seed 1", "fine"]


@BOTH
async def test_rewards_that_are_finite_alone_and_not_in_sum_are_a_failure(make_host: MakeHost, name: str) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match=r"sum of the episode's rewards is -6e\+38") as caught:
        await play(host, name, "-3e38", "fine", "-3e38")
    assert caught.value.kind == "ValueError" and host.counts["failed"] == 1
    for _ in range(2):  # each episode has a sum of its own, in the same worker
        await play(host, name, "-3e38")
    assert host.counts["reused"] == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 8,
        struct.pack("!I", 1) + b"{",
        struct.pack("!I", 1) + b"\xff",
        struct.pack("!I", 100_000) + b"[" * 100_000,
        encode([1, 2]),
        encode("result"),
        encode({}),
        encode({"error": "x"}),
        encode({"error": {"text": "x", "__notes__": "y"}}),
        encode({"error": {"text": [], "kind": {}}}),
    ],
)
async def test_whatever_a_process_sends_only_its_episode_fails(sent: bytes) -> None:
    """The process plays untrusted actions, so its messages are not trusted either."""
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen(["sleep", "60"]) as process:
        worker = ProcessWorker(process.pid, ours)
        theirs.sendall(sent)
        with pytest.raises(EnvironmentFailure):
            await worker.call("step", "x")
        worker.stop()
        assert process.wait(30) == -signal.SIGKILL


async def test_a_process_that_dies_affects_only_its_episode(make_host: MakeHost) -> None:
    host = make_host()
    other = asyncio.create_task(play(host, PROCESS, *["sleep"] * 3))
    with pytest.raises(EnvironmentFailure, match=r"process \d+ died in step"):
        await play(host, PROCESS, "die")
    assert (await other)[-1] == "sleep"
    assert (await play(host, PROCESS, "fine"))[-1] == "fine"


async def test_a_process_killed_from_outside_is_replaced(make_host: MakeHost) -> None:
    host = make_host()
    pid = int((await play(host, PROCESS, "pid"))[-1])
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert (await play(host, PROCESS, "pid"))[-1] != str(pid), "a dead worker was lent"
    assert host.counts == {"made": 2}


async def test_a_process_has_the_lowest_priority_and_its_own_session(make_host: MakeHost) -> None:
    pid = int((await play(make_host(), PROCESS, "pid"))[-1])
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) != os.getsid(0)


async def test_a_fork_server_that_died_is_replaced(make_host: MakeHost) -> None:
    host = make_host()
    pid = int((await play(host, PROCESS, "pid"))[-1])
    fork_server = psutil.Process(pid).parent()
    assert fork_server is not None and "env_adapters.host.fork_server" in fork_server.cmdline()
    fork_server.kill()
    assert gone(pid), "the forked process outlived the fork server"
    assert (await play(host, PROCESS, "fine"))[-1] == "fine"


async def test_no_session_gets_one_of_the_workers_that_died_while_idle(make_host: MakeHost) -> None:
    host = make_host()
    pids = await asyncio.gather(*(play(host, PROCESS, "sleep", "pid") for _ in range(4)))
    for texts in pids:
        os.kill(int(texts[-1]), signal.SIGKILL)
    assert all([gone(int(texts[-1])) for texts in pids])
    assert await asyncio.gather(*(play(host, PROCESS, "fine") for _ in range(4))) == [["seed 1", "fine"]] * 4
    assert host.counts == {"made": 8}


async def test_an_environment_that_exits_in_a_thread_fails_at_once(make_host: MakeHost) -> None:
    with pytest.raises(EnvironmentFailure, match="SystemExit"):
        await asyncio.wait_for(play(make_host(), THREAD, "exit"), 60)  # its time limit is longer


@BOTH
async def test_an_environment_that_cannot_be_made_fails_cleanly(make_host: MakeHost, name: str) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match="ValueError: cannot be created"):
        await play(host, name, fails="make")
    assert host.counts["failed"] == 1


@BOTH
async def test_an_environment_that_raises_in_close_costs_nothing(make_host: MakeHost, name: str) -> None:
    host = make_host(max_idle=0)  # so that each is closed when its episode is over
    for _ in range(2):
        assert await play(host, name, "fine", fails="closing") == ["seed 1", "fine"]
    assert host.counts["failed"] == 0
    async with asyncio.timeout(60):
        await host.close()


async def test_the_least_recently_used_worker_is_stopped_first(make_host: MakeHost) -> None:
    host = make_host(max_idle=2)
    pids = {turns: int((await play(host, PROCESS, "pid", max_turns=turns))[-1]) for turns in (5, 6)}
    await play(host, PROCESS, max_turns=5)
    await play(host, PROCESS, max_turns=7)
    assert gone(pids[6]) and psutil.pid_exists(pids[5])
    assert (await play(host, PROCESS, "pid", max_turns=5))[-1] == str(pids[5])


async def test_large_observations_are_transferred(make_host: MakeHost) -> None:
    assert (await play(make_host(limits=Limits(characters=2**21)), PROCESS, "huge"))[-1] == "\udc80x" * 2**20


async def test_families_that_share_a_library_with_circular_imports_can_be_imported_concurrently(
    make_host: MakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two importing threads would deadlock; Python avoids that by giving one a partially initialised module."""
    (tmp_path / "tangled").mkdir()
    (tmp_path / "tangled" / "__init__.py").write_text("import time; time.sleep(0.5)\nfrom tangled.inner import thing")
    (tmp_path / "tangled" / "inner.py").write_text("import tangled\nthing = 1")
    for name, wait, module in (("first", 0.0, "tangled"), ("second", 0.1, "tangled.inner")):
        lines = f"import time; time.sleep({wait})\nimport {module}\nfrom misbehaving import Sharing"
        (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    host = make_host()
    played = await asyncio.gather(*(play(host, f"{name}:Sharing", "fine") for name in ("first", "second")))
    assert played == [["seed 1", "fine"]] * 2


async def test_registered_names_are_known_to_other_processes(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from misbehaving import Misbehaving

    monkeypatch.setattr(registry, "_registered", {})
    env_adapters.register("by-class", Misbehaving)
    env_adapters.register("by-path", PROCESS)
    host = make_host()
    for name in ("by-class", "by-path"):
        assert (await play(host, name, "fine"))[-1] == "fine"


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_an_unknown_name_is_refused_with_the_known_ones(make_host: MakeHost, isolation) -> None:
    with pytest.raises(
        (ValueError, EnvironmentFailure),
        match=r"unknown environment 'minihak'; did you mean minihack\? known: .*minihack",
    ):
        await play(make_host(isolation=isolation), "minihak")


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown isolation 'docker'; known: auto, thread, process"):
        EnvironmentHost(isolation="docker")  # pyright: ignore[reportArgumentType]


async def test_the_event_loop_keeps_running_while_environments_work(make_host: MakeHost) -> None:
    host = make_host()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(play(host, name, "sleep") for name in (PROCESS, THREAD)))
    ticking.cancel()
    assert ticks > 10
