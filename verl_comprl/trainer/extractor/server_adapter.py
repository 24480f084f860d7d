"""Trainer side of the extractor's weight sync: gives its weights to its servers, with a limit for each wait.

A transfer that breaks is one that has failed in all ranks, and leaves no server waiting. verl names the sockets of
weight transfers after the Ray job and the replica rank, which it derives from the process rank, so that two models in
one job would use the same: the extractor's ranks are shifted (``replica.py``).
"""

import asyncio
import os
from collections.abc import Awaitable, Generator
from contextlib import suppress
from typing import Any

import ray
from torch import distributed
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_comprl.errors import WaitTimeout
from verl_comprl.manager.server_calls import is_dead, raise_if_dead
from verl_comprl.names import FIRST_EXTRACTOR_REPLICA
from verl_comprl.platform.ranks import meet
from verl_comprl.platform.weight_transfers import (
    RELEASE_SECONDS,
    TRANSFER_SECONDS,
    exhaust,
    limit_transfers,
    release_receiver,
)


class ExtractorServerAdapter(ServerAdapter):
    """Trainer side of the weight sync: addresses the replica of the extractor that this worker belongs to."""

    _failed = False
    """Whether the last transfer was begun and has not succeeded, in all ranks alike."""
    _in_engine = False
    """Whether this is a training rank, and not a server with slots of its own."""
    _order: Any = None
    """Answer to come of the server that is to receive weights; None in ranks without a server."""

    def __init__(self, *args, **kwargs) -> None:
        """Take verl's arguments; shift the replica rank, and the name of the socket that contains it."""
        super().__init__(*args, **kwargs)
        limit_transfers(TRANSFER_SECONDS)
        if self.replica_rank >= FIRST_EXTRACTOR_REPLICA:
            return  # a server with slots of its own names its rank
        self._in_engine = True
        self.replica_rank += FIRST_EXTRACTOR_REPLICA
        job = ray.get_runtime_context().get_job_id()
        local_rank = self.rollout_rank % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{self.replica_rank}-rank-{local_rank}.sock"

    async def update_weights(self, weights: Any, *args: Any, **kwargs: Any) -> None:
        """Send the weights to the server of this worker, unless it has died.

        A transfer that fails is one that failed in all ranks, and leaves no server waiting, so that it can be tried
        again: verl's next barrier would not be met by the rank that failed.

        Raises:
            OtherRankFailed: If another rank could not send.
            RuntimeError: If the server has failed before the sender has.
            Exception: Whatever else verl's sender raises.
        """
        if self._failed:  # the server may have been stopped when it was to be released
            await self._together(asyncio.to_thread(release_receiver, self.zmq_handle))
        self._failed = True
        await self._together(self._send(weights, *args, **kwargs))
        self._failed = False

    async def resume(self, tags: list[str]) -> None:
        """Let the server take its memory back, unless it has died."""
        await self._together(self._resume(tags))

    async def _together(self, work: Awaitable[Any]) -> None:
        failure: Exception | None = None
        try:
            await work
        except Exception as error:
            failure = error
        if self._in_engine and distributed.is_initialized() and distributed.get_world_size() > 1:
            meet(failure)
        if failure is not None:
            raise failure

    async def _send(self, weights: Any, *args: Any, **kwargs: Any) -> None:
        self._order, sends = None, False
        try:
            sends = not await self._server_has_died()
            if sends:
                await super().update_weights(weights, *args, **kwargs)
            else:
                await exhaust(weights)
        except Exception:  # whatever it was is raised again, or its cause
            with suppress(Exception):
                await exhaust(weights)
            if not sends:
                raise
            cause = await self._failure_of_order(seconds=0.1)
            await asyncio.to_thread(release_receiver, self.zmq_handle)
            await self._failure_of_order(seconds=RELEASE_SECONDS)  # it is over when the next one is given
            if cause is not None:
                # Not as it is: that a server has died would read as the death of this worker.
                raise RuntimeError(f"a server of the extractor could not take the weights: {cause!r}") from cause
            raise

    async def _failure_of_order(self, *, seconds: float) -> Exception | None:
        if self._order is None:
            return None
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._order)
        except TimeoutError:
            return None
        except Exception as error:
            return error
        return None

    async def _resume(self, tags: list[str]) -> None:
        if not await self._server_has_died():
            await _within(super().resume(tags), "a server of the extractor to take its memory back")

    async def _execute_method(self, method: str, non_block: bool = False, **options: Any) -> Any:
        """Give the server an order; verl waits for the answer, be it here or later, without limit."""
        answer = await super()._execute_method(method, non_block=True, **options)
        self._order = answer
        limited = None if answer is None else _Limited(answer, f"a server of the extractor to end {method}")
        return limited if non_block or limited is None else await limited

    async def _server_has_died(self) -> bool:
        """Return whether the replica's first node, which has the engine, or this worker's has died.

        Raises:
            WaitTimeout: If one does not answer. This process would be blocked for good otherwise, and with it every
                later order to the engine, such as saving it.
        """
        for node in {0, self.node_rank}:
            name = f"{self._get_server_name_prefix()}server_{self.replica_rank}_{node}"
            try:
                server: Any = ray.get_actor(name)
                answer = server.__ray_call__.remote(raise_if_dead)
                await _within(answer, "a server of the extractor to say that it is there")
            except ValueError:  # Ray knows no actor of that name any more
                return True
            except Exception as error:
                if not is_dead(error):
                    raise
                return True
        return False


class _Limited:
    """An answer that is waited for with a limit, which begins when it is waited for."""

    def __init__(self, answer: Any, what: str) -> None:
        self._answer, self._what = answer, what

    def __await__(self) -> Generator[Any, Any, Any]:
        return _within(self._answer, self._what).__await__()


async def _within(answer: Awaitable[Any], what: str) -> Any:
    limit = asyncio.timeout(TRANSFER_SECONDS)
    try:
        async with limit:
            return await answer
    except TimeoutError as error:
        if not limit.expired():  # the server's own
            raise
        raise WaitTimeout(what, TRANSFER_SECONDS) from error
