"""The embedder for OpenAI-compatible endpoints, against a local HTTP server: requests, answers, failures."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from embedding_endpoint import EmbeddingEndpoint
from fake_embedder import FakeEmbedder
from local_server import LocalServer
from openai import APIStatusError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from verl_comprl.experience import BankConfig, EmbedderUnavailable, ExperienceBank, make_embedder
from verl_comprl.experience.embedding.openai import OpenAIEmbedder

MODEL = "served"


class Endpoint:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.statuses: list[int] = []
        self.delay = 0.0
        self.together = 0
        """Requests that have to be there at the same time once before any is answered."""
        self.in_flight = self.most_in_flight = 0
        self.change: Callable[[list[Any]], list[Any]] = lambda rows: rows
        self.server = LocalServer(Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])]))

    async def _embed(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append(body)
        self.keys.add(request.headers.get("authorization"))
        if self.statuses:
            return JSONResponse({"error": {"message": "provoked"}}, self.statuses.pop(0), {"retry-after": "0.01"})
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        while self.most_in_flight < self.together:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.delay)
        self.in_flight -= 1
        vectors = 3 * await FakeEmbedder().embed_documents(body["input"])  # not normalised
        rows = [{"object": "embedding", "index": n, "embedding": row.tolist()} for n, row in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return JSONResponse({"object": "list", "model": body["model"], "usage": usage, "data": self.change(rows)})


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint = Endpoint()
    endpoint.server.start()
    yield endpoint
    endpoint.server.stop()


async def connect(endpoint: Endpoint, **settings: Any) -> OpenAIEmbedder:
    embedder = await OpenAIEmbedder.create(f"{endpoint.server.url}/v1", MODEL, **settings)
    endpoint.requests.clear()
    return embedder


async def test_vectors_are_normalised_and_in_the_order_of_the_texts(endpoint: Endpoint) -> None:
    endpoint.change = lambda rows: rows[::-1]
    embedder = await connect(endpoint, batch_size=3)
    texts = [f"text {n}" for n in range(8)]
    vectors = await embedder.embed_documents(texts)
    assert np.allclose(vectors, await FakeEmbedder().embed_documents(texts), atol=1e-6) and vectors.dtype == np.float32
    assert sorted(len(request["input"]) for request in endpoint.requests) == [2, 3, 3]
    assert (await embedder.embed_queries([])).shape == (0, 64) and len(endpoint.requests) == 3


async def test_prompts_and_identity(endpoint: Endpoint) -> None:
    embedder = await connect(endpoint, query_prompt="query: ", document_prompt="passage: ")
    await embedder.embed_queries(["a"])
    await embedder.embed_documents(["b"])
    assert [request["input"] for request in endpoint.requests] == [["query: a"], ["passage: b"]]
    expected = {"model": MODEL, "dimension": 64, "query_prompt": "query: ", "document_prompt": "passage: "}
    assert embedder.identity == expected


async def test_the_key_comes_from_the_environment(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    await connect(endpoint)
    assert endpoint.keys == {"Bearer from-the-environment"}


async def test_no_more_requests_at_once_than_allowed(endpoint: Endpoint) -> None:
    embedder = await connect(endpoint, batch_size=1, max_in_flight=3)
    endpoint.together, endpoint.delay = 3, 0.25  # in which more could come
    await asyncio.gather(embedder.embed_queries(["a"] * 6), embedder.embed_documents(["b"] * 6))
    assert endpoint.most_in_flight == 3


async def test_transient_failures_are_retried(endpoint: Endpoint) -> None:
    embedder = await connect(endpoint)
    endpoint.statuses = [429, 503]
    assert (await embedder.embed_queries(["a"])).shape == (1, 64)
    assert len(endpoint.requests) == 3


async def test_persistent_failures_are_raised(endpoint: Endpoint) -> None:
    embedder = await connect(endpoint, timeout=60)
    assert embedder._client.timeout == 60
    endpoint.statuses = [500] * 9
    with pytest.raises(APIStatusError):
        await embedder.embed_queries(["a"])


async def test_an_endpoint_that_is_away_is_told_from_one_that_refuses_texts(endpoint: Endpoint) -> None:
    """Distillations wait for the first, and give up what the second refuses again and again."""
    embedder = await connect(endpoint, timeout=60)
    endpoint.statuses = [429] * 3
    with pytest.raises(EmbedderUnavailable, match=rf"{endpoint.server.url}/v1/: .*429"):
        await embedder.embed_queries(["a"])
    endpoint.statuses = [400]
    with pytest.raises(APIStatusError):
        await embedder.embed_queries(["a"])
    embedder._client, endpoint.delay = embedder._client.with_options(timeout=0.1), 60.0
    with pytest.raises(EmbedderUnavailable, match="timed out"):
        await embedder.embed_queries(["a"])
    endpoint.server.stop()
    with pytest.raises(EmbedderUnavailable, match="Connection error"):
        await embedder.embed_queries(["a"])
    with pytest.raises(EmbedderUnavailable, match=rf"endpoint '{endpoint.server.url}/v1' with model 'm': "):
        await OpenAIEmbedder.create(f"{endpoint.server.url}/v1", "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], "returned 1 vectors for 2 texts"),
        (lambda rows: [rows[0], rows[0]], "or with wrong indices"),
        (lambda rows: [rows[0], {**rows[1], "embedding": [0.0] * 64}], "zero or not finite"),
        (lambda rows: [{**row, "embedding": row["embedding"][:9]} for row in rows], "9 dimensions, earlier 64"),
    ],
)
async def test_unusable_answers_are_refused(
    endpoint: Endpoint, change: Callable[[list[Any]], list[Any]], message: str
) -> None:
    embedder = await connect(endpoint)
    endpoint.change = change
    with pytest.raises(ValueError, match=message):
        await embedder.embed_documents(["a", "b"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>sign in</html>", "has no vectors: <html>sign in</html>"),
        ("{}", "has no vectors"),
        ("null", "has no vectors: None"),
        ("[]", "has no vectors"),
        ('{"data": null}', "has no vectors"),
        ('{"data": "abc"}', "has no vectors"),
        ('{"data": [{"index": 0, "embedding": null}]}', "has no vectors"),
        ('{"data": [{"index": 0, "embedding": [[1, 2], [3, 4]]}]}', "has no vectors"),
        ('{"data": [{"index": 0, "embedding": [1, [2]]}]}', "has no vectors"),
        (f'{{"data": [{{"index": 0, "embedding": [{"9" * 400}]}}]}}', "cannot be read: int too large"),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        ('{"data', "cannot be read"),
    ],
)
async def test_answers_of_any_other_form_are_named(body: str, message: str) -> None:
    endpoint = EmbeddingEndpoint()
    kind = "text/html" if body.startswith("<") else "application/json"
    endpoint.failures = [Response(body, media_type=kind)]
    endpoint.server.start()
    with pytest.raises(ValueError, match=rf"endpoint '{endpoint.url}' with model 'm': the endpoint's answer {message}"):
        await OpenAIEmbedder.create(endpoint.url, "m")
    endpoint.server.stop()


async def test_an_endpoint_that_does_not_answer_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match=rf"endpoint '{endpoint.server.url}/wrong' with model 'm': "):
        await OpenAIEmbedder.create(f"{endpoint.server.url}/wrong", "m")


async def test_a_bank_on_an_endpoint_that_dies_and_returns(endpoint: Endpoint, tmp_path: Any, apply: Any) -> None:
    from verl_comprl.experience import Add

    embedder = await make_embedder(MODEL, url=f"{endpoint.server.url}/v1", timeout=60)
    bank = await ExperienceBank.open(BankConfig(path=str(tmp_path)), embedder)
    await apply(bank, Add(title="doors", content="open them"))
    assert (await bank.retrieve("open doors")).status == "found"
    endpoint.server.stop()
    assert (await bank.retrieve("open doors")).status == "found"  # its vector is known
    assert (await bank.retrieve("other doors")).status == "degraded"
    endpoint.server.start()
    assert (await bank.retrieve("other doors")).status == "found"
    assert bank.statistics()["degraded"] == 1
    await bank.close()
