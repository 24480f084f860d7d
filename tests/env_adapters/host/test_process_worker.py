"""The host's side of one process, which here is any program, whose connection the test has."""

import asyncio
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest

from env_adapters.host.process import ProcessWorker
from env_adapters.host.wire import encode
from env_adapters.host.worker import EnvironmentFailure, raised_by_environment


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_nothing_is_left_of_a_request_that_nobody_has_read(program: subprocess.Popen[bytes]) -> None:
    """The process has ended, but another one holds its end of the connection."""
    ours, held = socket.socketpair()
    with held:
        worker = ProcessWorker(program.pid, ours)
        calling = asyncio.create_task(worker.call("step", "x" * 10**6))
        await asyncio.sleep(0.1)
        assert not calling.done()
        program.kill()
        with pytest.raises(EnvironmentFailure, match=r"died in step\(\)"):
            await calling
        worker.stop()
        await asyncio.sleep(0.1)
        assert ours.fileno() == -1


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (struct.pack("!I", 2**24 + 1), "sent no message: a message of 16777217 bytes is too large; at most 16777216"),
        (encode([[]] * 10**6), r"sent neither a result nor an error: \[\[\], \[\], \[\], .{0,40}$"),
    ],
)
async def test_what_is_no_answer_is_said_in_a_line(program: subprocess.Popen[bytes], sent: bytes, message: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        worker = ProcessWorker(program.pid, ours)
        answering = asyncio.create_task(asyncio.to_thread(theirs.sendall, sent))
        with pytest.raises(EnvironmentFailure, match=message):
            await worker.call("step", "fine")
        await answering
        worker.stop()


class _Odd:
    def __format__(self, form: str) -> str:
        raise SystemExit


class _Text(str):
    def __getitem__(self, key: object) -> str:
        return _Odd()  # type: ignore[return-value]

    def __format__(self, form: str) -> str:
        raise SystemExit

    def __str__(self) -> str:
        raise SystemExit


class _Nameless(type):
    __name__ = property(lambda _: 1 / 0)  # type: ignore[assignment]


class _Unnamed(Exception, metaclass=_Nameless):
    pass


class _Untold(Exception):
    def __str__(self) -> str:
        return _Text("told")


@pytest.mark.parametrize(
    ("error", "text"), [(_Unnamed("why"), "it cannot be shown: why"), (_Untold(), "_Untold: told")]
)
def test_an_exception_of_any_class_is_data(error: Exception, text: str) -> None:
    shown = raised_by_environment(error)
    assert shown["text"] == text
    assert {type(value) for value in shown.values()} == {str}
    encode(shown)
