"""Waiting with a limit, and for work in a thread that nothing else depends on."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from env_adapters.host.worker import EnvironmentFailure, raised_by_environment

_Result = TypeVar("_Result")


async def within(seconds: float, what: str, work: Awaitable[_Result]) -> _Result:
    """Wait for ``work`` with a time limit.

    Raises:
        EnvironmentFailure: If it took too long.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError as error:
        if not deadline.expired():  # another time limit, such as the caller's
            raise
        raise EnvironmentFailure(f"{what} did not return within {seconds:g} s", kind="TimeoutError") from error


def in_daemon_thread(function: Callable[..., _Result], *arguments: Any) -> "asyncio.Future[_Result]":
    """Call a function that may hang in a thread of its own, for which the interpreter does not wait at its end.

    Asyncio's threads are few, and verl encodes the texts of all episodes in them.

    Returns:
        The call's result, or what it raised; an exception that would end a process, or that no future can hold
        (``StopIteration``), becomes ``EnvironmentFailure``.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Result] = loop.create_future()

    def call() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:
            error = (
                raised
                if isinstance(raised, Exception) and not isinstance(raised, StopIteration)
                else EnvironmentFailure(**raised_by_environment(raised))
            )
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the answer
            loop.call_soon_threadsafe(settle, answer, result, error)

    threading.Thread(target=call, name=function.__name__, daemon=True).start()
    return answer


def settle(answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    """Set the outcome of a future for which nobody may be waiting any more."""
    if answer.done():  # the caller timed out or was cancelled meanwhile
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
