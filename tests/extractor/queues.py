"""Types of the fixtures for the distillation queue, and how its tests empty one and read what it logs."""

import asyncio
import logging
from collections.abc import Callable

import pytest

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


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what this package has logged: asyncio may complain about a task of an earlier test."""
    return [record for record in caplog.records if record.name.startswith("verl_comprl.")]
