"""Attempts of the distillation queue, over kills of its process, and the letters of what is given up."""

import asyncio
import errno
import json
import logging
from pathlib import Path

import pytest
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)
from queues import MakeQueue, MakeRequest, drain

from verl_comprl.extractor.dead_letters import DEAD_LETTERS


async def test_a_request_whose_distillation_kills_the_process_is_given_up_in_the_end(
    make_queue: MakeQueue, make_request: MakeRequest
) -> None:
    queue = make_queue("failed before", "deadly", "harmless", max_attempts=3, backoff_seconds=60.0)
    queue.fail(await queue.get(), "once")  # and killed before it is tried again
    queue = make_queue(max_attempts=3, recover=True)
    first = await queue.get()
    queue.acknowledge(first)
    for _ in range(3):
        assert (first.id, len(queue)) == ("failed before", 2) and await queue.get() == make_request("deadly")
        queue = make_queue(max_attempts=3, recover=True)
    assert await drain(queue) == ["harmless"] and queue.counts["dead"] == 1


async def test_what_is_given_up_at_a_recovery_is_a_dead_letter(make_queue: MakeQueue, tmp_path: Path) -> None:
    queue = make_queue("deadly", "on disk", "on disk, too", max_attempts=2, capacity=1)
    for _ in range(2):
        assert not (tmp_path / "queue" / DEAD_LETTERS).exists() and queue.on_disk == 2
        assert (await queue.get()).id == "deadly"
        queue = make_queue(max_attempts=2, capacity=1, recover=True)
    letter = json.loads((tmp_path / "queue" / DEAD_LETTERS).read_text())
    assert (letter["request"]["id"], letter["attempts"], queue.counts["dead"]) == ("deadly", 2, 1)
    assert "killed" in letter["reason"]
    assert await drain(queue) == ["on disk", "on disk, too"]
    assert len(make_queue(recover=True)) == 0


@pytest.mark.parametrize("noted", [True, False])
async def test_an_episode_whose_letter_was_written_before_a_kill_has_no_second_one(
    make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """Also if the beginning of its last attempt could not be noted: it is not distilled again."""
    letters = tmp_path / "queue" / DEAD_LETTERS
    queue = make_queue("dead", "other", max_attempts=2)
    queue.fail(await queue.get(), "once")
    await queue.get()
    with monkeypatch.context() as patch:
        if not noted:
            patch.setattr(queue._log, "put", full_disk)
        dead = await queue.get()
        patch.setattr(queue, "acknowledge", killed)
        with pytest.raises(asyncio.CancelledError):
            queue.fail(dead, "twice")
    letters.write_bytes(b"5\n{}\n" + letters.read_bytes() + b'{"at": 1.0, "reas')  # lines that are no letters
    queue = make_queue(max_attempts=2, recover=True)
    assert await drain(queue) == ["other"] and letters.read_text().count('"id":"dead"') == 1
    assert len(make_queue(recover=True)) == 0


def full_disk(key: str, text: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def killed(*_: object) -> None:
    """End the process, as far as those who call it can tell."""
    raise asyncio.CancelledError


async def test_an_attempt_that_fails_is_counted_once(make_queue: MakeQueue) -> None:
    queue = make_queue("a", max_attempts=4)
    queue.fail(await queue.get(), "first")
    queue.fail(await queue.get(), "second")
    await queue.get()
    queue = make_queue(max_attempts=4, recover=True)  # the third killed the process
    queue.fail(await queue.get(), "fourth")
    assert queue.counts["dead"] == 1 and len(queue) == 0


async def test_an_attempt_that_a_checkpoint_interrupts_does_not_count(make_queue: MakeQueue, tmp_path: Path) -> None:
    queue = make_queue("a", max_attempts=2)
    for _ in range(3):
        await queue.get()
        await queue.save(tmp_path / "queue.jsonl")
        queue = make_queue(max_attempts=2)
        queue.restore(tmp_path / "queue.jsonl")
    queue.fail(await queue.get(), "once")
    assert queue.counts["dead"] == 0 and len(queue) == 1


async def test_an_attempt_that_cannot_be_noted_is_made(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue("a", "b")
    monkeypatch.setattr(queue._log, "put", full_disk)
    with caplog.at_level(logging.WARNING):
        assert await drain(queue) == ["a", "b"]
    assert queue.counts["disk_failures"] == 2 and len(ours(caplog)) == 1


@pytest.mark.parametrize("killed", [False, True])
async def test_an_episode_is_kept_until_its_dead_letter_can_be_written(
    make_queue: MakeQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    killed: bool,
) -> None:
    monkeypatch.setattr("verl_comprl.extractor.queue._LONGEST_BACKOFF", 0.02)
    queue = make_queue("bad", max_attempts=1)
    letters = tmp_path / "queue" / DEAD_LETTERS
    letters.mkdir(parents=True)
    request = await queue.get()
    with caplog.at_level(logging.WARNING):
        if killed:
            queue = make_queue(max_attempts=1, recover=True)
        else:
            queue.fail(request, "no use")
        assert len(queue) == 1 and queue.counts["dead"] == 0
        async with asyncio.timeout(10):
            while queue.counts["disk_failures"] < 3:
                await asyncio.sleep(0.01)
    first = "an episode may become a dead letter twice" if killed else "the dead letter of episode bad has to wait"
    assert len(ours(caplog)) == 1 and first in caplog.text
    with pytest.raises(TimeoutError):  # it is not distilled again meanwhile
        await asyncio.wait_for(queue.get(), 0.05)
    await queue.save(tmp_path / "saved.jsonl")
    assert "bad" in (tmp_path / "saved.jsonl").read_text()
    letters.rmdir()
    await asyncio.wait_for(queue.wait_idle(), 10)
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert letter["request"]["id"] == "bad" and queue.counts["dead"] == 1
    assert len(make_queue(max_attempts=1, recover=True)) == 0


async def test_a_torn_dead_letter_costs_itself_only(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    queue, letters = make_queue(max_attempts=1), tmp_path / "queue" / DEAD_LETTERS
    queue.put(make_request("first"))
    queue.put(make_request("second"))
    queue.fail(await queue.get(), "once")
    letters.write_bytes(letters.read_bytes() + b'{"at": 1.0, "reas')  # killed in the middle of another one
    queue.fail(await queue.get(), "once")
    first, torn, second = letters.read_text().splitlines()
    assert [json.loads(line)["request"]["id"] for line in (first, second)] == ["first", "second"] and torn[-1] == "s"
