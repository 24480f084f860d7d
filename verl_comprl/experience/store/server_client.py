"""Makes calls to a Qdrant server, with time limits, retries, limited concurrency, and StoreError for every failure.

Owns how a call is made. The calls themselves are in ``server`` and ``server_collection``.
"""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import stamina
from pydantic import ValidationError
from qdrant_client import AsyncQdrantClient
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from verl_comprl.experience.busy import BUSY
from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.store.errors import StoreError, StoreUnavailable, StoreVanished
from verl_comprl.experience.store.payload import escaped

T = TypeVar("T")

# Retries are usual, and what fails in the end is raised; stamina would print a line for each.
logging.getLogger("stamina").setLevel(logging.ERROR)

_NO_SPACE = "No space left on device"
_LONGEST_WAIT = 10.0
"""Seconds; a server that asks for a longer wait counts as down."""


class ServerClient:
    """An ``AsyncQdrantClient`` with retries and one error type. Belongs to the event loop and process that made it."""

    def __init__(self, config: BankConfig, client: AsyncQdrantClient | None = None) -> None:
        """Prepare calls to ``config.url``; the first one connects.

        Args:
            config: URL, time limit, number of attempts and of requests in flight.
            client: Used instead of a client of ``config.url``: the contract suite passes one in local mode.
        """
        self.name = f"experience bank {config.collection} on {config.url}"
        self.whole_seconds = max(1, round(config.timeout_seconds))
        """Time limit of a request as the client and the server take it. Writes and searches send it: without it a
        server keeps working on them after the client has given up."""
        self._client = client or AsyncQdrantClient(
            url=config.url,
            api_key=os.environ.get("QDRANT_API_KEY"),
            timeout=self.whole_seconds,
            prefer_grpc=False,
            check_compatibility=False,  # would be a blocking call
            pool_size=config.max_in_flight,
        )
        self._attempts = config.attempts
        self._seconds = config.timeout_seconds
        self._in_flight = asyncio.Semaphore(config.max_in_flight)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.closed = False

    def __reduce__(self) -> NoReturn:
        """Refuse: connections and locks cannot be sent to another process."""
        raise TypeError(f"the connection of {self.name} cannot be sent to another process; open it there")

    async def call(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Make an idempotent call; repeat it if the server is busy, failing or unreachable.

        Raises:
            StoreError: If the last attempt failed, or the error is not one to retry.
        """
        return await self._guarded(lambda: self._repeated(work))

    async def call_briefly(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Make a call for which others wait: one attempt, and no longer than a request may take, queueing included.

        Raises:
            StoreError: If it failed or was late.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self.call_once(work)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.name}: no answer within {self._seconds:g} s") from error

    async def call_once(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Make a call that must not be repeated.

        Raises:
            StoreError: If it failed.
        """
        return await self._guarded(lambda: self._request(work))

    async def close(self) -> None:
        """Close the connections."""
        self.closed = True
        await self._client.close()

    async def _repeated(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        attempts = stamina.retry_context(
            on=_should_retry,
            attempts=self._attempts,
            timeout=None,
            wait_initial=0.05,
            wait_max=2.0,
            wait_jitter=0.1,
        )
        async for attempt in attempts:
            with attempt:
                return await self._request(work)
        raise AssertionError("stamina ends with a result or an exception")

    async def _request(self, work: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Make one request; the client's own limits are for a server's silence, not for an answer that comes in drops.

        Raises:
            ResponseHandlingException: If it takes too long, as the client raises it.
        """
        try:
            async with asyncio.timeout(self.whole_seconds):
                return await work(self._client)
        except TimeoutError as error:
            raise ResponseHandlingException(TimeoutError(f"no answer within {self.whole_seconds} s")) from error

    async def _guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        if os.getpid() != self._pid:
            raise StoreError(f"{self.name} was opened in process {self._pid}, this is a fork of it")
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError(f"{self.name} was opened in another event loop; open it where it is used")
        if self.closed:
            raise StoreError(f"{self.name} is closed")
        try:
            async with self._in_flight:
                return await work()
        except StoreError:
            raise
        except Exception as error:  # the client passes on exceptions of httpx, of pydantic and of its local mode
            raise _kind(error)(f"{self.name}: {_explained(error)}") from error


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of a client's error, or of the one that caused a ``StoreError``; None without one."""
    if isinstance(error, StoreError):
        error = error.__cause__
    # The client reads no date in `Retry-After` (proxies send one), and raises its own base class then.
    if isinstance(error, ResourceExhaustedResponse) or type(error) is QdrantException:
        return 429
    return error.status_code if isinstance(error, UnexpectedResponse) else None


def _should_retry(error: Exception) -> bool | float:
    """Return whether to retry, or after how many seconds."""
    if isinstance(error, ResourceExhaustedResponse):
        return float(error.retry_after_s) if error.retry_after_s <= _LONGEST_WAIT else False
    status = status_of(error)
    if _is_full(error):
        return False
    return status in (408, 429) or status >= 500 if status else isinstance(error, ResponseHandlingException)


def _kind(error: Exception) -> type[StoreError]:
    """Return the exception that says whether what was asked may be at fault, as it may with any other status."""
    status = status_of(error)
    if status == 404:
        return StoreVanished
    # Also a request that is late, unlike a generation: entries are short, and a server that hangs answers none.
    lost = isinstance(error, ResponseHandlingException) and not isinstance(error.source, ValidationError)
    return StoreUnavailable if lost or status in BUSY or _is_full(error) else StoreError


def _is_full(error: Exception) -> bool:
    return _NO_SPACE in str(error) or status_of(error) == 507


def _explained(error: Exception) -> str:
    status = status_of(error)
    if status in (401, 403):
        return f"{status}, the API key is missing or wrong: set the environment variable QDRANT_API_KEY"
    if _is_full(error):
        return "the server's disk is full (No space left on device); searches still work; free some space on it"
    if status == 404:
        return f"{_one_line(error)} The bank has vanished from the server."
    return _one_line(error)


def _answer(error: UnexpectedResponse) -> str:
    """Return what the server says, or the beginning of an answer in another form."""
    try:
        text = str(json.loads(error.content)["status"]["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = f"{error.reason_phrase} {error.content[:200].decode(errors='replace')}"
    return escaped(" ".join(text.split()), 500)


def _one_line(error: Any) -> str:
    if isinstance(error, UnexpectedResponse):
        return f"{error.status_code} {_answer(error)}"
    source = getattr(error, "source", error)
    text = " ".join(str(source).split()) or type(source).__name__
    return text if source is error else f"{type(source).__name__}: {text}"
