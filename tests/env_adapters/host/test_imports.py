"""The host with families that cannot be imported, hang meanwhile, or end the process that imports them."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hosted import PROCESS, THREAD, gone, hurried, play

import env_adapters
from env_adapters import TextEnvironment, registry
from env_adapters.host import EnvironmentFailure, EnvironmentHost
from env_adapters.host.process import ForkServer

MakeHost = Callable[..., EnvironmentHost]

HANGING = "from misbehaving import released; released.wait()"
EXITING = "import os; os._exit(3)"


def importing() -> int:
    """Return how many threads import a family."""
    return sum(thread.name == registry.environment_class.__name__ for thread in threading.enumerate())


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Check how long a block takes."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


async def test_an_import_that_hangs_affects_only_its_episode(
    make_host: MakeHost, released: threading.Event, family: Callable[[str, str], str]
) -> None:
    host, hanging = make_host(), family("hanging", HANGING)
    failure = pytest.raises(EnvironmentFailure, match=rf"importing '{hanging}' did not return within 0\.5 s")
    with failure, hurried(host):
        await play(host, hanging)
    assert await play(host, THREAD, "fine") == ["seed 1", "fine"]


async def test_an_import_that_hangs_takes_one_thread_however_many_episodes_wait_for_it(
    make_host: MakeHost, released: threading.Event, family: Callable[[str, str], str]
) -> None:
    host, hanging = make_host(), family("hanging", HANGING)
    for _ in range(2):
        with hurried(host):
            played = await asyncio.gather(*(play(host, hanging) for _ in range(40)), return_exceptions=True)
        assert all(isinstance(failure, EnvironmentFailure) for failure in played)
    assert importing() <= 2  # one, and that of the test before may just end
    assert await asyncio.wait_for(asyncio.to_thread(int, "1"), 10) == 1  # as verl encodes texts


async def test_an_import_that_ends_after_its_limit_is_not_made_again(
    make_host: MakeHost,
    released: threading.Event,
    family: Callable[[str, str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imports: list[str] = []

    def counted(name: str) -> type[TextEnvironment]:
        imports.append(name)
        return registry.environment_class(name)

    monkeypatch.setattr("env_adapters.host.importer.environment_class", counted)
    code = f"{HANGING}\nfrom misbehaving import Sharing\nclass Environment(Sharing): pass"
    host, slow = make_host(), family("slow", code)
    with hurried(host), pytest.raises(EnvironmentFailure, match="importing"):
        await play(host, slow)
    waiting = [asyncio.create_task(play(host, slow, "fine")) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert imports == [slow]
    released.set()
    assert await asyncio.gather(*waiting) == [["seed 1", "fine"]] * 3


async def test_families_that_begin_together_wait_for_one_that_hangs_and_then_begin(
    make_host: MakeHost, released: threading.Event, family: Callable[[str, str], str]
) -> None:
    host, hanging = make_host(), family("hanging", HANGING)
    with hurried(host):
        first = asyncio.create_task(play(host, hanging))
        await asyncio.sleep(0)
    failed, played = await asyncio.gather(first, play(host, THREAD, "fine"), return_exceptions=True)
    assert isinstance(failed, EnvironmentFailure) and played == ["seed 1", "fine"]


@pytest.mark.parametrize(
    ("code", "seconds", "message"), [(EXITING, 60.0, "died or timed out"), (HANGING, 2.0, "a new process of")]
)
async def test_an_import_that_ends_or_holds_up_its_process_costs_other_families_nothing(
    make_host: MakeHost,
    family: Callable[[str, str], str],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    seconds: float,
    message: str,
) -> None:
    host, broken = make_host(isolation="process"), family("broken", code)
    async with host.session(PROCESS, {}) as session:
        await session.reset(1)
        with monkeypatch.context() as patch:
            patch.setattr("env_adapters.host.process._IMPORT_SECONDS", seconds)
            failed = asyncio.gather(*(play(host, broken) for _ in range(3)), return_exceptions=True)
            await asyncio.sleep(0.5)
        with at_most(60):
            assert await play(host, PROCESS, "fine", seed=2) == ["seed 2", "fine"]
        for failure in await failed:
            assert isinstance(failure, EnvironmentFailure) and message in str(failure)
        assert (await session.step("fine"))[0] == "fine"


async def test_environments_of_a_module_share_a_fork_server_and_one_that_is_missing_costs_them_nothing(
    make_host: MakeHost, family: Callable[[str, str], str]
) -> None:
    host = make_host(isolation="process")
    async with host.session(PROCESS, {}) as session:
        await session.reset(1)
        with pytest.raises(EnvironmentFailure, match="Missing"):
            await play(host, "misbehaving:Missing")
        assert (await session.step("fine"))[0] == "fine"
        pids = [int((await session.step("pid"))[0]), int((await play(host, THREAD, "pid"))[-1])]
    assert len({psutil.Process(pid).ppid() for pid in pids}) == 1


async def test_a_module_that_cannot_be_imported_keeps_no_process(
    make_host: MakeHost, family: Callable[[str, str], str]
) -> None:
    host, before = make_host(isolation="process"), len(psutil.Process().children())
    with pytest.raises(EnvironmentFailure, match="No module named 'nothing_of_this_name'"):
        await play(host, family("broken", "import nothing_of_this_name"))
    assert len(psutil.Process().children()) == before


async def test_a_process_that_dies_at_once_is_a_failure_of_its_environment(
    make_host: MakeHost, family: Callable[[str, str], str]
) -> None:
    code = "import os; from misbehaving import Misbehaving\nclass Environment(Misbehaving): pass\n"
    code += "os.register_at_fork(after_in_child=lambda: os._exit(1))"
    host, dying = make_host(isolation="process"), family("dying", code)
    for _ in range(8):  # before or after the host takes it over
        with pytest.raises(EnvironmentFailure, match="died"):
            await play(host, dying)


async def test_a_start_without_a_thread_costs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer()
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", raise_no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await server.fork(PROCESS)
    assert (await server.fork(PROCESS)).alive()
    server.close()


def raise_no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_fork_server_that_is_closed_while_it_starts_does_not_stay() -> None:
    before = {process.pid for process in psutil.Process().children()}
    for number in range(20):
        server = ForkServer()
        starting = asyncio.create_task(server.fork(PROCESS))
        await asyncio.sleep(0.001 * (number % 5))
        starting.cancel()
        server.close()
    for process in psutil.Process().children():
        assert process.pid in before or gone(process.pid)


async def test_a_process_that_nobody_waits_for_any_more_is_stopped_and_is_not_the_next_ones() -> None:
    server = ForkServer()
    first = await server.fork(PROCESS)
    for _ in range(20):
        waiting = asyncio.create_task(server.fork(PROCESS))
        await asyncio.sleep(0)
        waiting.cancel()
        worker = await server.fork(PROCESS)
        assert worker.alive()
        assert await worker.call("make", PROCESS, {}) is not None
        worker.stop()
        assert gone(worker.pid)
    fork_server = psutil.Process(first.pid).parent()
    assert fork_server is not None and [child.pid for child in fork_server.children()] == [first.pid]
    server.close()
    assert gone(first.pid)


SLEEPING = """
    import os, time
    from pathlib import Path

    Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(600)
"""
HOSTING = """
    import asyncio
    from env_adapters.host import EnvironmentHost

    async def main():
        async with EnvironmentHost(isolation="process").session("sleeping:Any", {}) as session:
            await session.reset(1)

    asyncio.run(main())
"""


def test_an_import_that_hangs_ends_with_a_host_that_is_killed(tmp_path: Path) -> None:
    """Its fork server reads nothing meanwhile, and has a session of its own, so that Ray does not find it."""
    (tmp_path / "sleeping.py").write_text(textwrap.dedent(SLEEPING))
    path = os.pathsep.join(map(str, (tmp_path, Path(env_adapters.__path__[0]).parent)))
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOSTING)], env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path
    )
    file, deadline = tmp_path / "sleeping.pid", time.monotonic() + 60
    try:
        while not (file.exists() and file.read_text()):
            assert host.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        host.kill()
        host.wait()
    assert gone(int(file.read_text()))
