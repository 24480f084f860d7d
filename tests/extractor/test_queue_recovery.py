"""Recovery of the distillation queue from the file of a process that was killed: nothing in it is destroyed."""

import errno
import io
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)
from queues import MakeQueue, MakeRequest, drain

from verl_comprl.extractor.queue import WAITING


async def test_what_was_pending_at_a_kill_is_recovered_in_order(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    killed = make_queue(capacity=3, max_attempts=2, backoff_seconds=60.0)
    for id in ("done", "given up", "working", "ready", "on disk", "on disk, too"):
        killed.put(make_request(id, goal="above\u2028below"))
    killed.acknowledge(await killed.get())
    hopeless = await killed.get()
    killed.fail(hopeless, "once")
    killed.fail(hopeless, "twice")
    await killed.get()
    with (tmp_path / "queue" / WAITING).open("ab") as file:
        file.write(b'{"key": "torn", "text": "{')

    queue = make_queue(capacity=2, recover=True)
    assert (len(queue), queue.on_disk) == (4, 2) and not queue.put(make_request("on disk"))
    assert queue.counts["disk_failures"] == 0
    queue.put(make_request("new"))
    again = make_queue(capacity=9, recover=True)  # killed before it did anything
    for each in (queue, again):
        assert await drain(each) == ["working", "ready", "on disk", "on disk, too", "new"]
    assert len(make_queue(recover=True)) == 0


@pytest.mark.parametrize("line", ['{"key": "bad", "text": "5"}', '{"key": "bad", "text": "{}"}'])
async def test_a_request_that_cannot_be_read_costs_itself_only(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path, line: str
) -> None:
    make_queue("first")
    file = tmp_path / "queue" / "waiting.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    queue = make_queue(recover=True)
    assert len(queue) == 1 and (await queue.get()).id == "first" and queue.counts["disk_failures"] == 1
    assert queue.put(make_request("bad"))  # its episode may be played again


@pytest.mark.parametrize(
    "damage",
    [b"5", b"{}", b'{"key": 1, "text": "x"}', b'{"done": ["a"]}', b'{"key": "b", "te\xff', b"\0" * 40, b"a\rb", b""],
)
@pytest.mark.parametrize("last", [False, True])
async def test_a_damaged_line_costs_itself_only_and_is_kept(
    make_queue: MakeQueue,
    make_request: MakeRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: bytes,
    last: bool,
) -> None:
    for id in ("a", "b", "c"):
        (queue := make_queue(recover=True)).put(make_request(id))
    assert len(queue) == 3
    file = tmp_path / "queue" / WAITING
    lines = file.read_bytes().splitlines(keepends=True)
    lines.insert(3 if last else 1, damage + b"\n")
    file.write_bytes(b"".join(lines) + b'{"key": "torn", "te')
    with caplog.at_level(logging.WARNING):
        queue = make_queue(recover=True)
    assert queue.counts["disk_failures"] == 1 and (tmp_path / "queue" / f"{WAITING}.damaged").read_bytes() == (
        damage + b"\n"
    )
    assert len(ours(caplog)) == 1 and f"1 damaged lines of {file} are left out, see {file}.damaged" in caplog.text
    queue.put(make_request("new"))
    queue = make_queue(recover=True)
    assert queue.counts["disk_failures"] == 0, "it is counted and kept once"
    assert await drain(queue) == ["a", "b", "c", "new"]


async def test_damaged_lines_stay_where_they_are_until_they_can_be_kept(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    make_queue("a")
    file, kept = tmp_path / "queue" / WAITING, tmp_path / "queue" / f"{WAITING}.damaged"
    file.write_bytes(b"first\n" + file.read_bytes() + b"second\n")
    kept.mkdir()
    queue = make_queue(recover=True)
    assert len(queue) == 1 and queue.counts["disk_failures"] == 2
    queue.put(make_request("b"))
    kept.rmdir()
    queue = make_queue(recover=True)
    assert kept.read_bytes() == b"first\nsecond\n" and await drain(queue) == ["a", "b"]


# ---- a file that cannot be read ----


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_file_that_could_not_be_opened_at_first_loses_nothing(
    make_queue: MakeQueue, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue("a", "b")  # of a process that was killed
    with no_file_can_be_opened(), caplog.at_level(logging.WARNING):
        queue = make_queue(recover=True)
        assert queue.put(make_request("meanwhile")) and queue.put(make_request("a"))  # in memory only
    assert not queue.put(make_request("b")), "it has been recovered"
    assert len(ours(caplog)) == 1 and "waiting.jsonl cannot be read" in caplog.text
    queue.put(make_request("new"))
    assert len(make_queue(recover=True)) == 4
    assert await drain(queue) == ["meanwhile", "a", "b", "new"]
    assert len(make_queue(recover=True)) == 0


@pytest.mark.parametrize("call", ["open", "read"])
async def test_a_file_that_cannot_be_read_is_kept(
    make_queue: MakeQueue,
    make_request: MakeRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    def broken(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    class Broken(io.FileIO):
        read = broken

    opened = Path.open

    def open_(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if path.name != WAITING or mode != "r+b":
            return opened(path, mode, *args, **options)
        return Broken(path, "r+") if call == "read" else broken()

    file = tmp_path / "queue" / WAITING
    for round, name in enumerate(("unread", "unread1")):
        make_queue().put(make_request(f"old {round}"))
        content = file.read_bytes()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(Path, "open", open_)
            caplog.clear()
            queue = make_queue(recover=True)
            assert file.read_bytes() == content
            for id in ("x", "y"):
                queue.put(make_request(id))
        assert (tmp_path / "queue" / f"{WAITING}.{name}").read_bytes() == content
        assert queue.counts["disk_failures"] == 1 and len(ours(caplog)) == 1
        assert f"{file} cannot be read; read again at the next episode, or else kept as {file}.unread" in caplog.text
        assert await drain(make_queue(recover=True)) == ["x", "y"] == await drain(queue)


async def test_a_checkpoint_reads_it_again_and_tells_that_it_lacks_its_episodes(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No episode has come since the process began again, and the run may be killed before one comes."""
    make_queue().put(make_request("old"))
    opened = Path.open

    def broken(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "r+b":
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, mode, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", broken)
        queue = make_queue(recover=True)
        assert await queue.save(tmp_path / "queue.jsonl") == 1
        assert (tmp_path / "queue.jsonl").read_text() == ""
    assert await queue.save(tmp_path / "queue.jsonl") == 0
    assert '"old"' in (tmp_path / "queue.jsonl").read_text() and await drain(queue) == ["old"]


async def test_a_file_that_cannot_be_recovered_is_counted(make_queue: MakeQueue, tmp_path: Path) -> None:
    (tmp_path / "queue" / WAITING).mkdir(parents=True)
    queue = make_queue(recover=True)
    assert len(queue) == 0 and queue.counts["disk_failures"] == 1
