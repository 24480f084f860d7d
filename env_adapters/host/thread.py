"""Environments in threads, for families whose instances may share a process.

Cheaper than processes, but a thread that hangs cannot be killed and is left running, and a crash ends the process.
"""

import asyncio
import queue
import threading
from contextlib import suppress
from typing import Any

from env_adapters.host.waiting import settle
from env_adapters.host.worker import EnvironmentFailure, Slot, raised_by_environment

_Request = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", str, tuple[Any, ...]]


class ThreadWorker:
    """One daemon thread that makes all calls of one environment."""

    def __init__(self) -> None:
        """Start the thread."""
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="environment", daemon=True)
        self._thread.start()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer, as ``Worker``."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._requests.put((loop, answer, method, arguments))
        return await answer

    def alive(self) -> bool:
        """Return whether the thread still runs, as ``Worker``."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the thread to end after its current call; a call that hangs keeps it running."""
        self._requests.put(None)

    def _serve(self) -> None:
        slot = Slot()
        while (request := self._requests.get()) is not None:
            loop, answer, method, arguments = request
            try:
                result: Any = slot.handle(method, *arguments)
                error = None
            except BaseException as raised:  # SystemExit too: the caller would wait for an answer until its time limit
                result, error = None, EnvironmentFailure(**raised_by_environment(raised))
            try:
                loop.call_soon_threadsafe(settle, answer, result, error)
            except RuntimeError:  # the loop is closed, so nothing waits for the answer
                break
        with suppress(Exception):
            slot.handle("close")
