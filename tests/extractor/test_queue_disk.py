"""Requests on a disk which is full or cannot be read, for a moment or for ever: none is lost for it."""

import asyncio
import errno
from pathlib import Path

import pytest
from queues import MakeQueue, MakeRequest, drain

from verl_comprl.extractor import queue as module
from verl_comprl.extractor.request_log import RequestLog


def failing_reads(monkeypatch: pytest.MonkeyPatch, *failing: str) -> set[str]:
    """Let reading fail of requests, as on a disk that is away; returns their ids, which may be changed."""
    away, read = {*failing}, RequestLog.read

    def pread(self: RequestLog, key: str) -> str:
        if key in away:
            raise OSError(5, "Input/output error")
        return read(self, key)

    monkeypatch.setattr(RequestLog, "read", pread)
    monkeypatch.setattr(module, "_READ_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(module, "PAUSES", (0.01, 0.01))
    return away


async def test_what_waits_on_a_disk_that_cannot_be_read_is_read_again(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue("a", "b", "c", capacity=1)
    away = failing_reads(monkeypatch, "b", "c")
    queue.acknowledge(await queue.get())
    await asyncio.sleep(0.05)
    assert len(queue) == queue.on_disk == 2 and queue.counts["disk_failures"] >= 2
    away.clear()
    assert sorted(await drain(queue)) == ["b", "c"]
    await asyncio.wait_for(queue.wait_idle(), 30)


async def test_one_that_can_never_be_read_keeps_no_other_waiting(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue("a", "b", "c", capacity=1)
    failing_reads(monkeypatch, "b")
    queue.acknowledge(await queue.get())
    request = await asyncio.wait_for(queue.get(), 30)
    queue.acknowledge(request)
    assert request.id == "c" and len(queue) == 1


@pytest.mark.parametrize(("fails", "missing", "saved"), [(99, 2, ["a"]), (1, 0, ["a", "b", "c"])])
async def test_a_checkpoint_says_how_many_it_lacks_of_a_disk_that_cannot_be_read(
    make_queue: MakeQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: int,
    missing: int,
    saved: list[str],
) -> None:
    """It is tried again before that."""
    queue = make_queue("a", "b", "c", capacity=1)
    failing_reads(monkeypatch)
    read, failures = RequestLog.read, iter(range(fails))

    def pread(self: RequestLog, key: str) -> str:
        if next(failures, None) is not None:
            raise OSError(5, "Input/output error")
        return read(self, key)

    monkeypatch.setattr(RequestLog, "read", pread)
    assert await queue.save(tmp_path / "saved.jsonl") == missing
    assert queue.counts["disk_failures"] == missing
    monkeypatch.undo()
    resumed = make_queue(name="resumed")
    resumed.restore(tmp_path / "saved.jsonl")
    assert await drain(resumed) == saved


async def test_what_is_read_again_while_a_checkpoint_is_written_is_in_it_once(
    make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would move from those on disk to those in memory, which have been written by then."""
    queue = make_queue("a", "b", "c", capacity=2)
    away, sleep = failing_reads(monkeypatch, "c"), asyncio.sleep
    queue.acknowledge(await queue.get())
    away.clear()
    with monkeypatch.context() as patch:
        patch.setattr(module.asyncio, "sleep", lambda seconds: sleep(0.05))  # after each of those that are written
        assert await queue.save(tmp_path / "saved.jsonl") == 0
    resumed = make_queue(name="resumed")
    resumed.restore(tmp_path / "saved.jsonl")
    assert await drain(resumed) == ["b", "c"] == await drain(queue)


async def test_what_has_waited_on_disk_before_is_not_counted_again(make_queue: MakeQueue, tmp_path: Path) -> None:
    queue = make_queue("a", "b", "c", capacity=1)
    await queue.save(tmp_path / "saved.jsonl")
    assert queue.counts["spilled"] == 2
    resumed = make_queue(name="resumed", capacity=1)
    resumed.restore(tmp_path / "saved.jsonl")
    recovered = make_queue(capacity=1, recover=True)
    for again in (resumed, recovered):
        assert again.on_disk == 2 and again.counts["spilled"] == 0


# ---- full ----


def refused_writes(monkeypatch: pytest.MonkeyPatch, *ids: str) -> set[str]:
    """Let the disk have no room for requests; returns their ids, which may be changed."""
    refused, put = {*ids}, RequestLog.put

    def pwrite(self: RequestLog, key: str, text: str) -> None:
        if key in refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, key, text)

    monkeypatch.setattr(RequestLog, "put", pwrite)
    return refused


@pytest.mark.parametrize("use", ["put", "get", "acknowledge"])
async def test_a_request_that_came_while_the_disk_was_full_survives_a_kill_once_there_is_room(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Whoever reported its episode was told that it is here, and does not report it again."""
    refused = refused_writes(monkeypatch, "during")
    queue = make_queue("before", "during", "other")
    in_progress = await queue.get()
    refused.clear()
    if use == "put":
        queue.put(make_request("after"))
    elif use == "get":
        await queue.get()
    else:
        queue.acknowledge(in_progress)
    assert queue.counts["disk_failures"] == 1
    recovered = await drain(make_queue(recover=True))
    left = {"put": {"before", "after"}, "get": {"before"}, "acknowledge": set[str]()}[use]
    assert {*recovered} == {"during", "other"} | left


async def test_an_attempt_that_began_while_the_disk_was_full_counts_after_a_kill_once_there_is_room(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue("a", max_attempts=1)
    refused = refused_writes(monkeypatch, "a")
    await queue.get()
    refused.clear()
    queue.put(make_request("b"))
    recovered = make_queue(max_attempts=1, recover=True)
    assert recovered.counts["dead"] == 1 and await drain(recovered) == ["b"]


async def test_one_for_which_there_is_never_room_is_counted_once_and_keeps_no_other_from_the_file(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refused_writes(monkeypatch, "large", "small")
    queue = make_queue("large", "small")
    refused.remove("small")
    for id in ("a", "b"):
        queue.put(make_request(id))
    assert queue.counts["disk_failures"] == 2
    assert {*await drain(make_queue(recover=True))} == {"small", "a", "b"}


async def test_one_that_is_done_before_there_is_room_is_not_written_any_more(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refused_writes(monkeypatch, "a")
    queue = make_queue("a")
    queue.acknowledge(await queue.get())
    refused.clear()
    queue.put(make_request("b"))
    assert await drain(make_queue(recover=True)) == ["b"]
