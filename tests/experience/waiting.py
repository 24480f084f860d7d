"""Waits for what a test has set going, in the event loop of the test."""

import asyncio
from collections.abc import Awaitable, Callable

Hold = Callable[..., tuple[asyncio.Event, asyncio.Event]]
"""Type of the fixture ``hold``."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not (found if isinstance(found := condition(), bool) else await found):
            await asyncio.sleep(0.005)
