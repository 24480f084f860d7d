"""Collects concurrent queries into micro-batches, limited by their number (B) and by waiting time (t_max)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


class MicroBatcher(Generic[Q, R]):
    """Runs queries in batches: as soon as ``max_batch`` are waiting, or ``max_wait_ms`` after the first of them."""

    def __init__(
        self,
        run: Callable[[list[Q]], Awaitable[Sequence[R | Exception]]],
        *,
        max_batch: int = 16,
        max_wait_ms: float = 1.0,
    ) -> None:
        """Pass batches to ``run``, which returns a result or an exception per query, in order; batches may overlap."""
        self._run = run
        self._max_batch = max_batch
        self._max_wait = max_wait_ms / 1000
        self._waiting: list[tuple[Q, asyncio.Future[R]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, query: Q) -> R:
        """Return the result for ``query``, or raise its exception, or what its batch raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((query, future))
        if len(self._waiting) >= self._max_batch:
            self._dispatch()
        elif self._timer is None:
            self._timer = loop.call_later(self._max_wait, self._dispatch)
        return await future

    async def drain(self) -> None:
        """Wait until every query submitted so far has its result."""
        if self._waiting:
            self._dispatch()
        while self._running:
            await asyncio.wait(self._running)

    def _dispatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._run_batch(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run_batch(self, batch: list[tuple[Q, asyncio.Future[R]]]) -> None:
        wanted = [(query, future) for query, future in batch if not future.cancelled()]
        if not wanted:
            return
        try:
            results = await self._run([query for query, _ in wanted])
            for (_, future), result in zip(wanted, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        except Exception as error:
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
        finally:
            # If this task is cancelled, its queries have neither result nor exception, and their callers would wait
            # forever. A future that is done ignores this.
            for _, future in wanted:
                future.cancel()
