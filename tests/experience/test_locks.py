"""The readers-writer lock under random cancellation, and its order."""

import asyncio
import random

from verl_comprl.experience.locks import ReadWriteLock


async def test_writers_are_exclusive_and_cancellation_leaves_the_lock_free() -> None:
    rng = random.Random(0)
    lock, readers, writers, most_readers = ReadWriteLock(), 0, 0, 0

    async def read() -> None:
        nonlocal readers, most_readers
        async with lock.read():
            readers += 1
            most_readers = max(most_readers, readers)
            assert writers == 0
            try:
                await asyncio.sleep(rng.random() * 0.002)
            finally:
                readers -= 1

    async def write() -> None:
        nonlocal writers
        async with lock.write():
            writers += 1
            assert (readers, writers) == (0, 1)
            try:
                await asyncio.sleep(rng.random() * 0.001)
            finally:
                writers -= 1

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.create_task(rng.choice([read, read, read, write])()))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.001)
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
    assert most_readers > 1
    async with asyncio.timeout(30):
        await write()
        await read()


async def test_a_waiting_writer_goes_before_later_readers() -> None:
    lock, order = ReadWriteLock(), []

    async def enter(name: str, side: str) -> None:
        async with getattr(lock, side)():
            order.append(name)
            await asyncio.sleep(0.001)

    await asyncio.gather(enter("r1", "read"), enter("w", "write"), enter("r2", "read"))
    assert order == ["r1", "w", "r2"]
