"""An OpenAI-compatible embedding endpoint on this machine, for tests of other processes: the fake embedder."""

import json

from fake_embedder import FakeEmbedder
from local_server import LocalServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class EmbeddingEndpoint:
    def __init__(self) -> None:
        self.failures: list[Response] = []
        """Sent before any answer."""
        self.factor = 1.0
        """Of each vector."""
        self.server = LocalServer(Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])]))

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1"

    async def _embed(self, request: Request) -> Response:
        body = json.loads(await request.body())
        if self.failures:
            return self.failures.pop(0)
        vectors = self.factor * await FakeEmbedder().embed_documents(body["input"])
        rows = [{"object": "embedding", "index": n, "embedding": row.tolist()} for n, row in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        answer = {"object": "list", "model": body["model"], "usage": usage, "data": rows}
        return Response(json.dumps(answer), media_type="application/json")  # starlette's own refuses NaN
