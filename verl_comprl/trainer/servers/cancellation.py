"""Requests that end in their server when nobody waits for the answer any more: a question that takes too long.

verl's client stops waiting and leaves the server to it, which would go on for as many tokens as an answer may have, in
the place of a request that somebody waits for.
"""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient


class CancellableServer:
    """Actor handle of a server, as verl's client uses it."""

    def __init__(self, server: Any) -> None:
        """Take the handle."""
        self._server = server

    @property
    def generate(self) -> Any:
        """Return the method, which is called as one of a handle."""
        return SimpleNamespace(remote=self._generate)

    async def _generate(self, **request: Any) -> Any:
        import ray

        answer = self._server.generate.remote(**request)
        try:
            return await answer
        except asyncio.CancelledError:
            with suppress(Exception):  # it would end by itself
                ray.cancel(answer)  # vLLM's engine then forgets the request
            raise


class CancellingClient(LLMServerClient):
    """verl's client, which ends in its server what nobody waits for any more."""

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        address, server = await super()._acquire_server(request_id, **extra)
        return address, CancellableServer(server)


class ResumingClient(CancellingClient, FullyAsyncLLMServerClient):
    """The same for verl's client that resumes generations which a weight sync has aborted."""
