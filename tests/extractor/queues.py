"""Types of the fixtures for the distillation queue, and how its tests empty one."""

import asyncio
from collections.abc import Callable

from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.queue import DistillationQueue

MakeQueue = Callable[..., DistillationQueue]
MakeRequest = Callable[..., DistillationRequest]


async def drain(queue: DistillationQueue) -> list[str]:
    received = []
    while len(queue):
        request = await asyncio.wait_for(queue.get(), 30)
        received.append(request.id)
        queue.acknowledge(request)
    return received
