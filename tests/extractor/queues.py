"""Requests and queues of a test folder, for the tests of the distillation queue."""

import asyncio
from collections.abc import Callable

from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.queue import DistillationQueue

MakeQueue = Callable[..., DistillationQueue]
MakeRequest = Callable[..., DistillationRequest]


async def drain(queue: DistillationQueue) -> list[str]:
    received = []
    while len(queue):
        request = await asyncio.wait_for(queue.get(), 1)
        received.append(request.id)
        queue.acknowledge(request)
    return received
