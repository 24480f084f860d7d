"""One thread that embeds for many callers: queries before documents, and what waits together at once.

An actor waits for the vector of its query, nobody for that of an entry: without an order, the guides of a step would
wait until all entries of the step before have been embedded, one by one.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from verl_comprl.errors import panics_as_errors

Kind = Literal["query", "document"]

_DOCUMENTS_AT_ONCE = 8
"""A query that comes meanwhile waits for them."""


class OneThread:
    """Runs an encoder for requests that come at any time; those that come while it works are joined."""

    def __init__(self, encode: Callable[[Kind, list[str]], np.ndarray], batch_size: int) -> None:
        """Set up.

        Args:
            encode: Returns the vectors of texts of one kind, shape ``(len(texts), dimension)``; called in the thread.
            batch_size: Most texts of joined requests; documents are joined up to eight.
        """
        self._encode = encode
        self._limits: dict[Kind, int] = {"query": batch_size, "document": min(batch_size, _DOCUMENTS_AT_ONCE)}
        self._waiting: dict[Kind, list[tuple[list[str], asyncio.Future[np.ndarray]]]] = {"query": [], "document": []}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")
        self._working: asyncio.Task[None] | None = None

    async def vectors(self, kind: Kind, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of ``texts``, or raise what the encoder raised for them or for those joined with them."""
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append((list(texts), future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while taken := self._next():
            kind, requests = taken
            joined = [text for texts, _ in requests for text in texts]
            try:
                with panics_as_errors():  # or the requests would wait for ever: this task would end
                    vectors = await loop.run_in_executor(self._executor, self._encode, kind, joined)
            except Exception as error:
                for _, future in requests:
                    if not future.done():
                        future.set_exception(error)
                continue
            start = 0
            for texts, future in requests:
                if not future.done():
                    future.set_result(vectors[start : start + len(texts)])
                start += len(texts)

    def _next(self) -> tuple[Kind, list[tuple[list[str], asyncio.Future[np.ndarray]]]] | None:
        """Take the requests to work on next; one that is larger than the limit is taken by itself."""
        for kind, waiting in self._waiting.items():
            waiting[:] = [request for request in waiting if not request[1].done()]  # nobody waits for a cancelled one
            if not waiting:
                continue
            count, texts = 1, len(waiting[0][0])
            while count < len(waiting) and texts + len(waiting[count][0]) <= self._limits[kind]:
                texts += len(waiting[count][0])
                count += 1
            taken = waiting[:count]
            del waiting[:count]
            return kind, taken
        return None
