"""Answers of a Qdrant server that are wrong: every call raises StoreError, or nothing, and ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import qdrant_double
from qdrant_double import QdrantDouble
from starlette.responses import Response, StreamingResponse

from verl_comprl.experience import BankConfig, Experience, StoreError, derive_id
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.store.errors import StoreUnavailable
from verl_comprl.experience.store.server import ServerStore
from verl_comprl.experience.store.server_client import ServerClient

IDENTITY = {"model": "fake", "dimension": 4}
ENTRIES = [Experience(id=derive_id(n), title="", content="c") for n in range(3)]
VECTORS = np.eye(3, 4, dtype=np.float32)
REQUESTS = [SearchRequest(row, 3) for row in VECTORS]
IDS = [entry.id for entry in ENTRIES]


def calls(store: ServerStore) -> dict[str, Callable[[], Any]]:
    return {
        "load": store.load,
        "count": store.count,
        "search": lambda: store.search(REQUESTS),
        "fetch": lambda: store.fetch(IDS),
        "vectors": lambda: store.vectors(IDS),
        "upsert": lambda: store.upsert(ENTRIES, VECTORS),
        "update": lambda: store.update(ENTRIES),
        "delete": lambda: store.delete(IDS[:1]),
        "replace_all": lambda: store.replace_all(ENTRIES, VECTORS),
    }


async def opened(config: BankConfig) -> ServerStore:
    store = await ServerStore.open(config, embedding=IDENTITY)
    await store.upsert(ENTRIES, VECTORS)
    return store


async def test_answers_of_another_form_are_store_errors(double: QdrantDouble, config: BankConfig) -> None:
    config = config.model_copy(update={"attempts": 1})
    store = await opened(config)
    for wrong in (None, [], {}, "x", 7, [None], [{}], {"points": None}, {"points": [{"id": "\x1b", "score": 1}]}):
        double.faults.tamper = lambda _, wrong=wrong: wrong
        for name, call in calls(store).items():
            try:
                await call()
            except StoreError as error:
                assert "\x1b" not in str(error), (name, wrong)
        try:
            await ServerStore.open(config, embedding=IDENTITY, read_only=True)
        except StoreError as error:
            assert "\x1b" not in str(error)
    double.faults.tamper = None
    await store._client.close()


@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
async def test_answers_of_deeply_nested_json_are_store_errors(
    double: QdrantDouble, config: BankConfig, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"attempts": 1})
    store = await opened(config)
    with monkeypatch.context() as patch:
        deep = Response(b"[" * 200_000, status, media_type="application/json")
        patch.setattr(qdrant_double, "JSONResponse", lambda *_: deep)
        for call in (*calls(store).values(), store.flush):
            with pytest.raises(StoreError) as caught:
                await call()
            assert len(str(caught.value)) < 900
        with pytest.raises(StoreError):
            await ServerStore.open(config, embedding=IDENTITY, read_only=True)
    await store.close()


async def test_a_request_is_given_up_however_slowly_its_answer_arrives(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop at a time, so that the server is never silent."""
    store = await opened(config.model_copy(update={"attempts": 1}))
    impatient = ServerClient(config.model_copy(update={"attempts": 1, "timeout_seconds": 1}))

    async def drops() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b" "
            await asyncio.sleep(0.2)

    with monkeypatch.context() as patch:
        patch.setattr(qdrant_double, "JSONResponse", lambda *_: StreamingResponse(drops()))
        patch.setattr(store, "_client", impatient)
        for name in ("load", "search", "upsert"):
            with pytest.raises(StoreUnavailable, match="no answer within 1 s"):
                async with asyncio.timeout(30):
                    await calls(store)[name]()
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="no answer within 1 s"):
                await impatient.call_once(lambda client: client.get_collections())
    await impatient.close()
    await store.close()


async def test_a_listing_without_an_end_ends(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    double.faults.tamper = lambda result: {**result, "next_page_offset": IDS[0]} if "points" in result else result
    with pytest.raises(StoreError, match="lists the same entries again and again"):
        await store.load()
    double.faults.tamper = None
    await store.close()


@pytest.mark.parametrize("vector", [None, [1.0], [1.0] * 5, {"name": [1.0] * 4}, [[1.0] * 4] * 2])
async def test_vectors_of_another_form_are_one_clear_error(
    double: QdrantDouble, config: BankConfig, vector: Any
) -> None:
    store = await opened(config)
    double.faults.tamper = lambda result: [{**record, "vector": vector} for record in result]
    with pytest.raises(StoreError, match="has vectors that are no rows of 4 numbers"):
        await store.vectors(IDS)
    double.faults.tamper = None
    await store.close()


async def test_every_search_has_its_answer_and_every_hit_a_score(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    double.faults.tamper = lambda result: result[:-1]
    with pytest.raises(StoreError, match="2 answers to 3 searches"):
        await store.search(REQUESTS)
    # Not what JSON allows, but what parsers of it read.
    double.faults.tamper = lambda result: [
        {"points": [{**point, "score": "NaN"} if point["id"] == IDS[0] else point for point in answer["points"]]}
        for answer in result
    ]
    for hits in await store.search(REQUESTS):
        assert {hit.id for hit in hits} <= set(IDS[1:]) and all(np.isfinite(hit.score) for hit in hits)
    double.faults.tamper = None
    await store.close()


async def test_what_a_server_says_is_shown_in_one_printable_line(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    double.faults.text = "\x1b[2Jbroken\n" + "x" * 5000
    double.faults.responses = [(422, {})]
    with pytest.raises(StoreError, match="422") as caught:
        await store.count()
    assert "broken" in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 900
    await store.close()
