"""An OpenAI-compatible chat endpoint on this machine, for tests: it answers, refuses, is late or sends nonsense."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from local_server import LocalServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Messages = list[dict[str, str]]


class ChatEndpoint:
    def __init__(self, reply: Callable[[Messages], str]) -> None:
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.failures: list[Response] = []
        """Sent before any answer."""
        self.change: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.delay = 0.0
        self.together = 0
        """Requests that have to be there at the same time once before any is answered."""
        self.in_flight = self.most_in_flight = 0
        self.server = LocalServer(Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])]))

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1"

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append(body)
        self.keys.add(request.headers.get("authorization"))
        if self.failures:
            return self.failures.pop(0)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        while self.most_in_flight < self.together:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.delay)
        self.in_flight -= 1
        message = {"role": "assistant", "content": self.reply(body["messages"])}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
        }
        return JSONResponse(self.change(answer))


def refusal(status: int) -> Response:
    return JSONResponse({"error": {"message": "provoked"}}, status, {"retry-after": "0.01"})
