"""Environments that start, fork or lose processes, and processes that cannot be had."""

import asyncio
import gc
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hosted import BOTH, PROCESS, gone, hurried, play

from env_adapters.host import EnvironmentFailure, EnvironmentHost
from env_adapters.host.process import ForkServer
from env_adapters.host.temporary import LONGEST, TEMPORARY

MakeHost = Callable[..., EnvironmentHost]
Family = Callable[[str, str], str]

HEAD = "import os\nfrom misbehaving import Misbehaving\nclass Environment(Misbehaving): pass\n"
NO_SECOND_FORK = """
forks, fork = [], os.fork
def counted():
    forks.append(1)
    if len(forks) == 2:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = counted
"""
FORKED = """
import time
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
"""
WRITING = """
import tempfile
class Environment(Misbehaving):
    def reset(self, *arguments, **settings):
        self.folder = tempfile.TemporaryDirectory(prefix="of-an-environment-")
        return self.folder.name, super().reset(*arguments, **settings)[1]
"""
LISTENING = """
from multiprocessing.connection import Listener
class Environment(Misbehaving):
    def reset(self, *arguments, **settings):
        with Listener(family="AF_UNIX") as listener:
            return listener.address, super().reset(*arguments, **settings)[1]
"""
LAZY = """
def __getattr__(name):
    raise SystemExit("needs a licence") if name == "Licensed" else AttributeError(name)
"""


async def test_a_fork_that_fails_costs_those_that_run_nothing(make_host: MakeHost, family: Family) -> None:
    host, crowded = make_host(), family("crowded", HEAD + NO_SECOND_FORK)
    async with host.session(crowded, {}) as session:
        await session.reset(1)
        with pytest.raises(EnvironmentFailure, match=r"BlockingIOError: .* temporarily unavailable") as failure:
            await play(host, crowded)
        assert failure.value.kind == "BlockingIOError"
        assert await play(host, crowded, "fine", seed=2) == ["seed 2", "fine"]
        assert (await session.step("fine"))[0] == "fine"


async def test_a_name_that_ends_the_process_which_looks_it_up_costs_those_that_run_nothing(
    make_host: MakeHost, family: Family
) -> None:
    host, lazy = make_host(isolation="process"), family("lazy", HEAD + LAZY)
    async with host.session(lazy, {}) as session:
        await session.reset(1)
        with pytest.raises(EnvironmentFailure, match="SystemExit: needs a licence") as failure:
            await play(host, lazy.replace("Environment", "Licensed"))
        assert failure.value.kind == "SystemExit" and "__getattr__" in failure.value.__notes__[0]
        assert (await session.step("fine"))[0] == "fine"


@pytest.mark.parametrize("isolation", ["auto", "process"])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("next(iter([]))", "StopIteration: "),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("from misbehaving import Unreadable\nraise Unreadable", "Unreadable: it cannot be shown"),
        ("[][3]", "IndexError: list index out of range"),
    ],
)
async def test_what_an_import_raises_is_said_at_once(
    make_host: MakeHost, family: Family, isolation: str, code: str, message: str
) -> None:
    host, broken = make_host(isolation=isolation), family("broken", code)
    for _ in range(2):
        with pytest.raises(Exception) as failure:
            await asyncio.wait_for(play(host, broken), 60)
        if isinstance(failure.value, EnvironmentFailure):
            assert str(failure.value) == message
        else:  # imported in this process, where an exception is raised as it is
            assert isolation == "auto" and type(failure.value).__name__ == message.partition(":")[0]


@BOTH
async def test_an_exception_that_cannot_be_shown_is_an_answer(make_host: MakeHost, name: str) -> None:
    async with make_host().session(name, {}) as session:
        await session.reset(1)
        with pytest.raises(EnvironmentFailure, match="Unreadable: it cannot be shown"):
            await asyncio.wait_for(session.step("unreadable"), 60)


@pytest.mark.parametrize("action", ["leave", "abandon"])
async def test_a_process_that_leaves_another_behind_has_died(make_host: MakeHost, action: str) -> None:
    host = make_host()
    with pytest.raises(EnvironmentFailure, match=r"died in step\(\)"):
        await asyncio.wait_for(play(host, PROCESS, action), 60)


async def test_a_process_has_died_though_its_import_has_left_one_behind(make_host: MakeHost, family: Family) -> None:
    host, forked = make_host(isolation="process"), family("forked", HEAD + FORKED)
    with pytest.raises(EnvironmentFailure, match=r"died in step\(\)"):
        await asyncio.wait_for(play(host, forked, "die"), 60)


async def test_a_program_of_an_environment_cannot_answer_for_it(make_host: MakeHost) -> None:
    assert await play(make_host(), PROCESS, "forge", "fine") == ["seed 1", "forge", "fine"]


async def test_what_an_environment_has_started_ends_with_it(make_host: MakeHost) -> None:
    host = make_host()
    async with host.session(PROCESS, {}) as session:
        await session.reset(1)
        pids = [int((await session.step(action))[0]) for action in ("start", "pid")]
        with hurried(session), pytest.raises(EnvironmentFailure, match="did not return"):
            await session.step("hang")
    assert all(map(gone, pids))


@pytest.mark.parametrize(("length", "used"), [(75, True), (76, False)])
async def test_temporary_files_of_environments_in_threads_are_made_there_too(
    make_host: MakeHost, family: Family, monkeypatch: pytest.MonkeyPatch, length: int, used: bool
) -> None:
    """Where there is room for the names of sockets, as below."""
    own = Path(tempfile.mkdtemp(dir="/tmp"))
    (place := own / ((length - len(str(own)) - 1) * "a")).mkdir()
    monkeypatch.setenv(TEMPORARY, str(place))
    monkeypatch.setattr("tempfile.tempdir", str(own))
    async with make_host(isolation="thread").session(family("writing", HEAD + WRITING), {}) as session:
        assert Path((await session.reset(1))[0]).parent == (place if used else own)
    shutil.rmtree(own)


@pytest.mark.parametrize("place", ["there", "on another machine"])
async def test_temporary_files_end_with_the_host(
    make_host: MakeHost, family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Environments that wait for their next episode are killed in the end, and clear up nothing."""
    (there := tmp_path / "there").mkdir()
    (otherwise := tmp_path / "otherwise").mkdir()
    monkeypatch.setenv(TEMPORARY, str(tmp_path / place))
    monkeypatch.setattr("tempfile.tempdir", str(otherwise))
    monkeypatch.setattr("env_adapters.host.temporary.LONGEST", 1000)
    host = make_host()
    async with host.session(family("writing", HEAD + WRITING), {}) as session:
        folder = Path((await session.reset(1))[0])
    assert folder.is_dir() and (there if place == "there" else otherwise) in folder.parents
    await host.close()
    assert not [*there.iterdir(), *otherwise.iterdir()]


async def test_temporary_files_end_with_a_host_that_is_not_closed(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "place").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr("env_adapters.host.temporary.LONGEST", 1000)
    server = ForkServer()
    worker = await server.fork(family("writing", HEAD + WRITING))
    process = server._process
    assert list(place.iterdir()) and process is not None
    del server, worker
    gc.collect()
    assert not list(place.iterdir())
    process.kill()
    process.wait()


async def test_a_long_name_of_the_temporary_folder_leaves_room_for_names_of_sockets(
    make_host: MakeHost, family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``multiprocessing.Manager`` and others make them in ``TMPDIR``."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    for length in LONGEST, 75:
        (longest := place / ((length - len(str(place)) - 1) * "a")).mkdir()
        monkeypatch.setenv("TMPDIR", str(longest))
        monkeypatch.setattr("tempfile.tempdir", None)
        async with make_host().session(family("writing", HEAD + LISTENING), {}) as session:
            assert Path((await session.reset(1))[0]).is_relative_to(longest)
    shutil.rmtree(place)


async def test_a_fork_of_an_environment_answers_nothing(make_host: MakeHost) -> None:
    host = make_host()
    assert await play(host, PROCESS, "fork", "fine") == ["seed 1", "fork", "fine"]
    assert await play(host, PROCESS, "fine", seed=2) == ["seed 2", "fine"]
    assert host.counts["reused"] == 1


async def test_no_free_file_descriptor_is_a_failure_of_the_environment(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    host = make_host()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", none_left)
        with pytest.raises(EnvironmentFailure, match="Too many open files"):
            await play(host, PROCESS)
    assert await play(host, PROCESS, "fine") == ["seed 1", "fine"]


async def test_environments_that_hang_at_their_end_are_stopped_together(make_host: MakeHost) -> None:
    host = make_host()
    async with asyncio.timeout(60):
        await asyncio.gather(*(play(host, PROCESS, fails="close") for _ in range(4)))
    started = time.monotonic()
    await host.close()
    assert time.monotonic() - started < 15  # 5 s each


async def test_an_environment_that_is_let_go_is_stopped_also_when_nobody_waits(make_host: MakeHost) -> None:
    host = make_host()
    pid = int((await play(host, PROCESS, "pid", fails="close"))[-1])
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0.1)
    assert psutil.pid_exists(pid) and pid != os.getpid()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert gone(pid)
