"""Distillation queue: ordered, at-least-once, bounded, and every loss is counted."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)
from queues import MakeQueue, MakeRequest, drain

from verl_comprl.experience.schema import DistillationRequest, Outcome, Turn
from verl_comprl.extractor import queue as module
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.dead_letters import DEAD_LETTERS
from verl_comprl.extractor.queue import WAITING, DistillationQueue


async def test_first_in_first_out_and_no_request_twice(make_queue: MakeQueue, make_request: MakeRequest) -> None:
    queue = make_queue()
    assert [queue.put(make_request(id)) for id in ("b", "a", "b", "c")] == [True, True, False, True]
    assert len(queue) == 3
    assert await drain(queue) == ["b", "a", "c"]


async def test_a_request_stays_pending_until_it_is_acknowledged(make_queue: MakeQueue) -> None:
    queue = make_queue("a")
    request = await queue.get()
    assert len(queue) == 1 and not queue.put(request)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.wait_idle(), 0.02)
    with pytest.raises(TimeoutError):  # it is not delivered again while in progress
        await asyncio.wait_for(queue.get(), 0.02)
    queue.acknowledge(request)
    await asyncio.wait_for(queue.wait_idle(), 30)
    assert len(queue) == 0


async def test_an_empty_queue_is_idle_and_get_waits_for_the_next(
    make_queue: MakeQueue, make_request: MakeRequest
) -> None:
    queue = make_queue()
    await asyncio.wait_for(queue.wait_idle(), 30)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(make_request("late"))
    assert (await asyncio.wait_for(waiting, 30)).id == "late"


async def test_a_secret_that_an_environment_shows_is_kept_nowhere(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_TOKEN", 'tok"en-0123456789')
    queue = make_queue(max_attempts=1)
    turns = (Turn(observation='$ env\nOTHER_TOKEN=tok"en-0123456789', response="look"),)
    queue.put(make_request("a", turns=turns))
    await queue.save(tmp_path / "queue.jsonl")
    request = await queue.get()
    assert request.turns[0].observation == "$ env\nOTHER_TOKEN=***" and request.turns[0].response == "look"
    queue.fail(request, """403 - {'authorization': 'tok"en-0123456789'}""")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"queue.jsonl", WAITING, DEAD_LETTERS} <= {file.name for file in files}
    assert [file.name for file in files if b"0123456789" in file.read_bytes()] == []


@pytest.mark.parametrize("secret", ["response", "observation", "10000000"])
async def test_a_secret_that_is_a_name_or_digits_of_a_request_costs_no_episode(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("LITELLM_KEY_SOURCE", secret)
    queue = make_queue()
    queue.put(make_request("a", turns=(Turn(observation=f"it says {secret}", response="look"),), step=1000000012))
    request = await queue.get()
    assert request.turns == (Turn(observation="it says ***", response="look"),) and request.step == 1000000012


# ---- overflow ----


async def test_requests_over_capacity_wait_on_disk_in_order(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    queue = make_queue(capacity=2)
    assert all(queue.put(make_request(str(n))) for n in range(5))
    assert not queue.put(make_request("4"))  # on disk is pending too
    assert len(queue) == 5 and queue.on_disk == 3 and queue.counts["spilled"] == 3
    first = await queue.get()
    queue.acknowledge(first)
    queue.put(make_request("5"))  # does not overtake those on disk
    assert [first.id, *await drain(queue)] == ["0", "1", "2", "3", "4", "5"]


async def test_drop_oldest_drops_the_oldest_request_that_is_not_in_progress(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    queue = make_queue("working", capacity=2, overflow="drop_oldest")
    working = await queue.get()
    for id in ("a", "b", "c"):
        queue.put(make_request(id))
    assert len(queue) == 2 and queue.counts["dropped"] == 2
    queue.acknowledge(working)
    assert await drain(queue) == ["c"]
    assert len(make_queue(overflow="drop_oldest", recover=True)) == 0


async def test_a_full_disk_keeps_requests_in_memory(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(capacity=1)
    (tmp_path / "queue").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert all(queue.put(make_request(str(n))) for n in range(3))
    assert queue.counts["disk_failures"] == 3 and len(ours(caplog)) == 1
    assert await drain(queue) == ["0", "1", "2"]
    assert queue.counts["disk_failures"] == 3, "what was never written need not be removed"


@pytest.mark.parametrize("text", ["3", "[]", "{}"])
async def test_a_damaged_line_is_counted_and_skipped(make_queue: MakeQueue, tmp_path: Path, text: str) -> None:
    """Also one whose key can be read: a worker that acknowledges the request before must not end of it."""
    queue = make_queue("a", "b", "c", "d", capacity=1)
    file = tmp_path / "queue" / WAITING
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = b"x" * len(lines[1])
    lines[2] = json.dumps({"key": "c", "text": text}).encode().ljust(len(lines[2]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))
    assert await drain(queue) == ["a", "d"] and queue.counts["disk_failures"] == 2
    await asyncio.wait_for(queue.wait_idle(), 30)


@pytest.mark.parametrize("damage", [b"x", b'{"text": 3}', b"3", b'{"key": "c", "text": "{}"}'])
async def test_a_damaged_line_does_not_keep_the_others_from_a_checkpoint(
    make_queue: MakeQueue, tmp_path: Path, damage: bytes
) -> None:
    queue = make_queue("a", "b", "c", capacity=1)
    file = tmp_path / "queue" / WAITING
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = damage.ljust(len(lines[1]))
    file.write_bytes(b"".join(lines))
    await queue.save(tmp_path / "saved.jsonl")
    assert queue.counts["disk_failures"] == 1
    resumed = make_queue(name="resumed")
    resumed.restore(tmp_path / "saved.jsonl")
    assert await drain(resumed) == ["a", "c"]


async def test_requests_of_an_earlier_process_are_not_delivered(make_queue: MakeQueue) -> None:
    make_queue("a", "b", capacity=1)  # of a process that was killed
    assert len(make_queue(capacity=1)) == 0
    assert len(make_queue(capacity=1, recover=True)) == 0


# ---- failures ----


async def test_a_failed_request_is_retried_and_finally_a_dead_letter(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    queue = make_queue(max_attempts=3)
    queue.put(make_request("bad", goal="above\u2028below"))
    for attempt in range(3):
        request = await asyncio.wait_for(queue.get(), 30)
        assert len(queue) == 1
        queue.fail(request, f"RuntimeError: attempt {attempt}")
    await asyncio.wait_for(queue.wait_idle(), 30)
    assert queue.counts == {"spilled": 0, "dropped": 0, "retried": 2, "dead": 1, "disk_failures": 0}
    (line,) = (tmp_path / "queue" / DEAD_LETTERS).read_text("utf-8").split("\n")[:-1]
    letter = json.loads(line)
    assert (letter["reason"], letter["attempts"]) == ("RuntimeError: attempt 2", 3) and letter["at"] > 0
    assert DistillationRequest.model_validate(letter["request"]) == request
    assert queue.put(request)  # a user may submit it again


async def test_other_requests_overtake_a_failed_one(make_queue: MakeQueue) -> None:
    queue = make_queue("a", "b", backoff_seconds=0.02)
    queue.fail(await queue.get(), "once")
    assert await drain(queue) == ["b", "a"]


async def test_backoff_doubles_up_to_a_minute_with_jitter(
    make_queue: MakeQueue, make_request: MakeRequest, monkeypatch
) -> None:
    queue, delays = make_queue(backoff_seconds=1.0, max_attempts=10), []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda delay, call, *arguments: (delays.append(delay), call(*arguments)))
    queue.put(make_request("a"))
    for _ in range(9):
        queue.fail(await queue.get(), "again")
    bases = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(0.5 * base <= delay <= 1.5 * base for base, delay in zip(bases, delays, strict=True))
    assert len({delay / base for base, delay in zip(bases, delays, strict=True)}) == 9


# ---- snapshots ----


async def test_restore_brings_back_every_pending_request(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path
) -> None:
    queue = make_queue(capacity=4, backoff_seconds=60.0, max_attempts=2)
    for id in ("done", "working", "failed", "ready", "on disk"):
        queue.put(make_request(id, success=id == "ready", experience_ids=("e1", "e2"), step=4))
    queue.acknowledge(await queue.get())
    queue.put(make_request("on disk, too"))
    working = await queue.get()
    queue.fail(await queue.get(), "once")
    await queue.save(tmp_path / "queue.jsonl")

    restored = make_queue(name="other", capacity=2, max_attempts=2)
    restored.restore(tmp_path / "queue.jsonl")
    restored.restore(tmp_path / "queue.jsonl")  # already there
    assert len(restored) == len(queue) == 5 and restored.on_disk == 3
    assert await restored.get() == working
    restored.fail(await restored.get(), "twice")  # its first attempt still counts
    assert restored.counts["dead"] == 1
    restored.acknowledge(working)
    ready = await restored.get()
    assert ready == make_request("ready", success=True, experience_ids=("e1", "e2"), step=4)
    restored.acknowledge(ready)
    assert await drain(restored) == ["on disk", "on disk, too"]


async def test_an_episode_is_not_in_the_queue_and_among_the_dead_letters(make_queue: MakeQueue, tmp_path: Path) -> None:
    """It was given up after the checkpoint from which the run continues."""
    queue = make_queue("before", "after", max_attempts=1)
    queue.fail(await queue.get(), "once")
    await queue.save(tmp_path / "queue.jsonl")
    queue.fail(await queue.get(), "once")

    # A run that continues it where another one has been.
    elsewhere = make_queue("own", name="other", max_attempts=1)
    elsewhere.fail(await elsewhere.get(), "once")
    elsewhere.restore(tmp_path / "queue.jsonl")
    assert dead(tmp_path / "other") == [] and dead(tmp_path / "other", aside=True) == ["own"]
    assert dead(tmp_path / "queue") == ["before", "after"]

    (tmp_path / "queue").rename(tmp_path / "moved")  # with the rest of the run
    for _ in range(2):
        restored = make_queue(name="moved", max_attempts=1)
        restored.restore(tmp_path / "queue.jsonl")
        assert dead(tmp_path / "moved") == ["before"] and dead(tmp_path / "moved", aside=True) == ["before", "after"]
        assert await drain(restored) == ["after"]


async def test_other_work_goes_on_while_many_requests_are_saved(make_queue: MakeQueue, tmp_path: Path) -> None:
    """Thousands may wait while the extractor is away, and guides must not wait with them."""
    queue = make_queue(*map(str, range(40)), capacity=20)
    turns, done = 0, asyncio.Event()

    async def other_work() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other_work())
    await queue.save(tmp_path / "queue.jsonl")
    done.set()
    await working
    assert turns >= 40
    assert len((tmp_path / "queue.jsonl").read_text().splitlines()) == 40


async def test_an_episode_that_is_given_up_while_it_is_saved_is_in_one_place(
    make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_BACKOFF", 0.01)
    queue = make_queue("a", "b", max_attempts=1)
    request = await queue.get()
    saving = asyncio.create_task(queue.save(tmp_path / "queue.jsonl"))
    await asyncio.sleep(0)
    queue.fail(request, "once")
    assert queue.counts["dead"] == 0 and len(queue) == 2
    await saving
    assert len((tmp_path / "queue.jsonl").read_text().splitlines()) == 2
    while not queue.counts["dead"]:
        await asyncio.sleep(0.01)
    assert dead(tmp_path / "queue") == ["a"] and len(queue) == 1


def dead(folder: Path, *, aside: bool = False) -> list[str]:
    """Return the ids of the dead letters, or of those that were set aside."""
    (file,) = folder.glob("dead_letters-*.jsonl") if aside else [folder / DEAD_LETTERS]
    return [json.loads(line)["request"]["id"] for line in file.read_text().splitlines()]


async def test_a_checkpoint_without_the_checksum_of_its_letters_is_believed(
    make_queue: MakeQueue, make_request: MakeRequest, tmp_path: Path
) -> None:
    """As an earlier release wrote it."""
    queue = make_queue(max_attempts=1)
    for id in ("before", "after"):
        queue.put(make_request(id))
        queue.fail(await queue.get(), "once")
        if id == "before":
            await queue.save(tmp_path / "queue.jsonl")
    saved = tmp_path / "dead_letters.json"
    saved.write_text(json.dumps({"bytes": json.loads(saved.read_text())["bytes"], "file": "/old/place"}))
    make_queue().restore(tmp_path / "queue.jsonl")
    assert dead(tmp_path / "queue") == ["before"]


async def test_a_new_run_in_a_used_folder_begins_without_dead_letters(make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue().set_aside_dead_letters()  # there are none
    queue = make_queue("earlier", max_attempts=1)
    queue.fail(await queue.get(), "once")
    make_queue().set_aside_dead_letters()
    assert not (tmp_path / "queue" / DEAD_LETTERS).exists()
    assert dead(tmp_path / "queue", aside=True) == ["earlier"]


async def test_an_empty_queue_round_trips(make_queue: MakeQueue, tmp_path: Path) -> None:
    await make_queue().save(tmp_path / "queue.jsonl")
    restored = make_queue()
    restored.restore(tmp_path / "queue.jsonl")
    assert len(restored) == 0
    await asyncio.wait_for(restored.wait_idle(), 30)


@given(text=st.text(), capacity=st.integers(1, 3))
async def test_any_text_survives_disk_and_snapshot(
    tmp_path_factory: pytest.TempPathFactory, text: str, capacity: int
) -> None:
    folder = tmp_path_factory.mktemp("queue")
    queue = DistillationQueue(QueueConfig(folder=str(folder / "a"), capacity=capacity))
    requests = [
        DistillationRequest(
            id=str(n),
            task=text,
            environment="room",
            goal=f"above{text}below",
            turns=(Turn(observation=text, response=text),),
            outcome=Outcome(success=True),
        )
        for n in range(4)
    ]
    for request in requests:
        queue.put(request)
    await queue.save(folder / "queue.jsonl")
    restored = DistillationQueue(QueueConfig(folder=str(folder / "b"), capacity=capacity))
    restored.restore(folder / "queue.jsonl")
    for request in requests:
        assert await asyncio.wait_for(restored.get(), 30) == request
        restored.acknowledge(request)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("folder", ""), ("overflow", "block"), ("capacity", 0), ("max_attempts", 0), ("backoff_seconds", -1.0)],
)
def test_settings_that_cannot_work(make_queue: MakeQueue, setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^QueueConfig\.{setting}={value!r} is not allowed; it must be "):
        make_queue(**{setting: value})
