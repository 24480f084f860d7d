"""The distillation queue: in order, at least once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.queue import DistillationQueue

MakeRequest = Callable[..., DistillationRequest]


async def drain(queue: DistillationQueue) -> list[str]:
    received = []
    while len(queue):
        request = await asyncio.wait_for(queue.get(), 1)
        received.append(request.id)
        queue.acknowledge(request)
    return received


async def test_first_in_first_out_and_a_pending_request_only_once(make_request: MakeRequest) -> None:
    queue = DistillationQueue()
    assert [queue.put(make_request(id)) for id in ("b", "a", "b", "c")] == [True, True, False, True]
    assert len(queue) == 3
    assert await drain(queue) == ["b", "a", "c"]


async def test_a_request_stays_pending_until_it_is_acknowledged(make_request: MakeRequest) -> None:
    queue = DistillationQueue()
    queue.put(make_request("a"))
    request = await queue.get()
    assert len(queue) == 1 and not queue.put(request)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.wait_idle(), 0.02)
    with pytest.raises(TimeoutError):  # it is not delivered a second time while somebody works on it
        await asyncio.wait_for(queue.get(), 0.02)
    queue.acknowledge(request)
    await asyncio.wait_for(queue.wait_idle(), 1)
    assert len(queue) == 0


async def test_an_empty_queue_is_idle_and_get_waits_for_the_next(make_request: MakeRequest) -> None:
    queue = DistillationQueue()
    await asyncio.wait_for(queue.wait_idle(), 1)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(make_request("late"))
    assert (await asyncio.wait_for(waiting, 1)).id == "late"


async def test_restore_brings_back_what_was_waiting_and_what_was_being_worked_on(
    make_request: MakeRequest, tmp_path: Path
) -> None:
    queue = DistillationQueue()
    for id in ("done", "working", "waiting"):
        queue.put(make_request(id, success=id == "waiting", experience_ids=("e1", "e2"), step=4))
    queue.acknowledge(await queue.get())
    working = await queue.get()
    queue.save(tmp_path / "queue.jsonl")

    restored = DistillationQueue()
    restored.restore(tmp_path / "queue.jsonl")
    assert len(restored) == 2
    assert await restored.get() == working
    assert await restored.get() == make_request("waiting", success=True, experience_ids=("e1", "e2"), step=4)


async def test_an_empty_queue_round_trips(tmp_path: Path) -> None:
    DistillationQueue().save(tmp_path / "queue.jsonl")
    restored = DistillationQueue()
    restored.restore(tmp_path / "queue.jsonl")
    assert len(restored) == 0
    await asyncio.wait_for(restored.wait_idle(), 1)


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"])
async def test_line_separators_in_a_text_survive(make_request: MakeRequest, tmp_path: Path, separator: str) -> None:
    queue, restored = DistillationQueue(), DistillationQueue()
    queue.put(make_request("a", goal=f"above{separator}below"))
    queue.save(tmp_path / "queue.jsonl")
    restored.restore(tmp_path / "queue.jsonl")
    assert (await restored.get()).goal == f"above{separator}below"
