"""Contract of all stores: the same calls give the same results.

The embedded engine, qdrant-client's local mode, the real client against a REST double over the engine, and a real
server where ``QDRANT_URL`` names one.
"""

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from qdrant_client import AsyncQdrantClient
from qdrant_double import QdrantDouble

from verl_comprl.experience import BankConfig, Experience, StoreError, TaskUsage, derive_id
from verl_comprl.experience.store.base import ExperienceStore, SearchRequest
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.experience.store.server import ServerStore

DIMENSION = 16
IDENTITY = {"model": "fake", "dimension": DIMENSION}
Open = Callable[..., Awaitable[ExperienceStore]]


def made(count: int, **fields: Any) -> list[Experience]:
    return [
        Experience(id=derive_id("e", n), title=f"t{n}", content="c\u2028é", created_step=n, **fields)
        for n in range(count)
    ]


def spread(count: int) -> list[Experience]:
    return [
        e.model_copy(update={"tasks": (f"task{n % 3}", *["shared"] * (n % 7 == 0)), "environments": (f"env{n % 2}",)})
        for n, e in enumerate(made(count))
    ]


def vectors(count: int, dimension: int = DIMENSION, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def double() -> Iterator[QdrantDouble]:
    server = QdrantDouble().start()
    yield server
    server.close()


class LocalMode(AsyncQdrantClient):
    """The client's local mode. Closing it would delete its content, so it stays open; it only records indexes."""

    async def close(self, *_: Any, **__: Any) -> None:
        pass

    async def create_payload_index(self, collection_name: str, field_name: str, *_: Any, **__: Any) -> Any:
        self.__dict__.setdefault("indexes", {}).setdefault(collection_name, set()).add(field_name)

    async def get_collection(self, collection_name: str, **settings: Any) -> Any:
        indexes = self.__dict__.get("indexes", {}).get(collection_name, ())
        info = await super().get_collection(collection_name, **settings)
        return info.model_copy(update={"payload_schema": dict.fromkeys(indexes)})


@pytest_asyncio.fixture(params=["embedded", "local mode", "double", "server"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path, double: QdrantDouble) -> AsyncIterator[Open]:
    url = {"embedded": "", "local mode": "http://local", "double": double.url}.get(
        request.param, os.environ.get("QDRANT_URL", "")
    )
    if request.param == "server" and not url:
        pytest.skip("QDRANT_URL names no server")
    config = BankConfig(path=str(tmp_path / "bank"), url=url, collection=f"test-{uuid.uuid4().hex}")
    client = LocalMode(":memory:") if request.param == "local mode" else None
    stores: list[ExperienceStore] = []

    async def open_(embedding: dict[str, Any] | None = IDENTITY) -> ExperienceStore:
        if url:
            stores.append(await ServerStore.open(config, embedding=embedding, client=client))
        else:
            stores.append(await EmbeddedStore.open(config.path, embedding=embedding))
        return stores[-1]

    yield open_
    for store in stores:
        await store.close()
    if request.param == "server":
        cleaner = AsyncQdrantClient(url=url, api_key=os.environ.get("QDRANT_API_KEY"))
        for collection in (await cleaner.get_collections()).collections:
            if collection.name.startswith(config.collection):
                await cleaner.delete_collection(collection.name)
        await cleaner.close()


async def ids_of(store: ExperienceStore) -> set[str]:
    return {entry.id for entry in await store.load()}


async def test_content_survives_reopening_bit_by_bit(open_store: Open) -> None:
    written = made(600, created_at=1795219346.9726121, parents=("p",), source_success=None)  # several pages
    store = await open_store()
    await store.upsert(written, vectors(600))
    await store.flush()
    await store.close()
    await store.close()
    store = await open_store()
    assert sorted(await store.load(), key=lambda entry: entry.id) == sorted(written, key=lambda entry: entry.id)
    assert await store.count() == 600
    assert np.array_equal(await store.vectors([entry.id for entry in written]), vectors(600))


async def test_a_store_opens_with_the_identity_it_has(open_store: Open) -> None:
    await (await open_store()).close()
    store = await open_store(embedding=None)
    assert store.embedding == IDENTITY and store.dimension == DIMENSION


async def test_an_empty_store(open_store: Open) -> None:
    store = await open_store()
    assert await store.load() == [] and await store.count() == 0
    assert await store.search([SearchRequest(vectors(1)[0], 16)]) == [[]]
    assert await store.search([]) == []
    assert (await store.vectors([])).shape == (0, DIMENSION)
    await store.upsert([], vectors(0))
    await store.update([])
    await store.delete([])


async def test_search_agrees_with_brute_force(open_store: Open) -> None:
    store = await open_store()
    everything, rows = spread(200), vectors(200)
    await store.upsert(everything, rows)
    query = vectors(1, seed=1)[0]
    order = [everything[n] for n in np.argsort(-(rows @ query))]
    excluded = frozenset(entry.id for entry in order[:4])
    found = await store.search(
        [
            SearchRequest(query, 16),
            SearchRequest(query, 16, task="task1"),
            SearchRequest(query, 16, environment="env0", exclude=excluded),
            SearchRequest(query, 300, task="task0", environment="env1"),
            SearchRequest(query, 300, task="shared"),
            SearchRequest(query, 16, task="unknown"),
        ]
    )

    def expected(limit: int, keep: Callable[[Experience], bool]) -> list[str]:
        return [entry.id for entry in order if keep(entry)][:limit]

    assert [[hit.id for hit in hits] for hits in found] == [
        expected(16, lambda e: True),
        expected(16, lambda e: "task1" in e.tasks),
        expected(16, lambda e: "env0" in e.environments and e.id not in excluded),
        expected(300, lambda e: "task0" in e.tasks and "env1" in e.environments),
        [entry.id for entry in order if entry.created_step % 7 == 0],
        [],
    ]
    best = found[0][0]
    assert best.score == pytest.approx(float(np.max(rows @ query)), abs=1e-6)


async def test_ties_are_ordered_by_id_and_a_copy_scores_one(open_store: Open) -> None:
    store = await open_store()
    entries, row = made(5), vectors(1)
    await store.upsert(entries, np.repeat(row, 5, axis=0))
    (hits,) = await store.search([SearchRequest(row[0], 5)])
    assert [hit.id for hit in hits] == sorted(entry.id for entry in entries)
    assert hits[0].score == pytest.approx(1.0, abs=1e-6)


async def test_a_write_is_read_at_once(open_store: Open) -> None:
    store = await open_store()
    for number, (entry, row) in enumerate(zip(made(20), vectors(20), strict=True)):
        await store.upsert([entry], row[None])
        (hits,) = await store.search([SearchRequest(row, 1)])
        assert hits[0].id == entry.id and await store.count() == number + 1
    await store.delete([made(20)[3].id])
    (hits,) = await store.search([SearchRequest(vectors(20)[3], 1)])
    assert hits[0].id != made(20)[3].id


async def test_the_same_upsert_again_changes_nothing(open_store: Open) -> None:
    store = await open_store()
    for _ in range(3):
        await store.upsert(made(10), vectors(10))
    assert await store.count() == 10
    await store.upsert([made(1)[0].model_copy(update={"content": "new"})], vectors(1, seed=9))
    assert await store.count() == 10
    assert np.allclose(await store.vectors([made(1)[0].id]), vectors(1, seed=9))


async def test_update_keeps_vectors_and_makes_no_entry(open_store: Open) -> None:
    store = await open_store()
    await store.upsert(made(100), vectors(100))
    changed = [
        entry.model_copy(update={"retrievals": 7, "last_retrieved_at": 1795219346.9726121}) for entry in made(90)
    ]
    vanished = Experience(id=derive_id("vanished"), title="", content="x")
    await store.delete([made(1)[0].id])
    await store.update([*changed, vanished])
    stored = {entry.id: entry for entry in await store.load()}
    assert len(stored) == 99 and vanished.id not in stored
    assert all(stored[entry.id] == entry for entry in changed[1:])
    assert np.array_equal(await store.vectors([made(2)[1].id]), vectors(2)[1:])


async def test_deleting_unknown_ids_is_silent_and_they_have_no_vector(open_store: Open) -> None:
    store = await open_store()
    await store.upsert(made(3), vectors(3))
    await store.delete([derive_id("unknown"), made(1)[0].id])
    await store.delete([made(1)[0].id])
    assert await store.count() == 2
    with pytest.raises(StoreError, match="1 of 2 entries have no vector in the store"):
        await store.vectors([made(2)[1].id, derive_id("unknown")])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (np.full((1, DIMENSION), np.nan, np.float32), "vector 0 of 1 is zero or not finite"),
        (np.full((1, DIMENSION), np.inf, np.float32), "vector 0 of 1 is zero or not finite"),
        (np.zeros((1, DIMENSION), np.float32), "vector 0 of 1 is zero or not finite"),
        (vectors(1, DIMENSION + 1), r"expected \(1, 16\)"),
        (vectors(2), r"expected \(1, 16\)"),
    ],
)
async def test_unusable_vectors_are_refused(open_store: Open, broken: np.ndarray, message: str) -> None:
    store = await open_store()
    with pytest.raises(StoreError, match=message):
        await store.upsert(made(1), broken)
    with pytest.raises(StoreError, match=message):
        await store.replace_all(made(1), broken)
    assert await store.count() == 0
    if broken.shape[0] == 1:
        with pytest.raises(StoreError):
            await store.search([SearchRequest(broken[0], 1)])


async def test_long_and_strange_texts_come_back_as_they_were(open_store: Open) -> None:
    store = await open_store()
    texts = ["", "x" * 100_000, "\u2028\u2029\x85", "日本語 🚪 e\u0301", '{"a": "\\\\"}', "</answer>"]
    entries = [
        Experience(id=derive_id("s", n), title=text[:50], content=text, tasks=(text[:9],))
        for n, text in enumerate(texts)
    ]
    await store.upsert(entries, vectors(len(texts)))
    assert sorted(await store.load(), key=lambda e: e.id) == sorted(entries, key=lambda e: e.id)
    (hits,) = await store.search([SearchRequest(vectors(1)[0], 9, task="日本語 🚪 e\u0301"[:9])])
    assert [hit.id for hit in hits] == [entries[3].id]


async def test_replacing_everything_also_with_other_dimensions(open_store: Open) -> None:
    store = await open_store()
    await store.upsert(made(300), vectors(300))
    await store.replace_all(made(70)[50:], vectors(20))
    assert await ids_of(store) == {entry.id for entry in made(70)[50:]}
    wide = {"model": "wide", "dimension": 24}
    await store.replace_all(made(100), vectors(100, 24), wide)
    assert store.dimension == 24 and store.embedding == wide
    (hits,) = await store.search([SearchRequest(vectors(100, 24)[7], 1)])
    assert hits[0].id == made(8)[7].id
    await store.upsert(made(101)[100:], vectors(1, 24, seed=5))
    await store.replace_all([], vectors(0, 24))
    assert await store.count() == 0
    await store.close()
    assert (await open_store(wide)).dimension == 24


async def test_another_embedder_is_refused_whatever_its_dimension(open_store: Open) -> None:
    await (await open_store()).close()
    with pytest.raises(StoreError, match="another embedder: model was 'fake', is 'other'"):
        await open_store({"model": "other", "dimension": DIMENSION})
    with pytest.raises(StoreError, match="another embedder: dimension was 16, is 17"):
        await open_store({"model": "fake", "dimension": 17})
    await open_store()


VERSION_1 = (
    '{"schema_version":1,"id":"%s","title":"t","content":"c","task":"fetch","environment":"room","record_id":"r",'
    '"created_step":4,"created_at":1.5,"weight_version":2,"source_trajectory":"e","source_success":true,"parents":[],'
    '"uses":4,"successes":3,"retrievals":7,"last_retrieved_at":2.5,"trainings":1,"last_trained_step":9,"upvotes":0,'
    '"downvotes":0,"quarantined":""}'
)


async def test_entries_of_release_0_1_0_are_read_found_and_rewritten(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, request = derive_id("old"), SearchRequest(vectors(1)[0], 9, task="fetch", environment="room")
    store = await open_store()
    with monkeypatch.context() as patch:
        payload = {"task": "fetch", "environment": "room", "created_step": 4, "entry": VERSION_1 % id}
        patch.setattr("verl_comprl.experience.store.payload.to_payload", lambda _: payload)
        await store.upsert([Experience(id=id, title="", content="")], vectors(1))
    (entry,) = await store.load()
    assert (entry.tasks, entry.environments, entry.schema_version) == (("fetch",), ("room",), 2)
    assert entry.usage == (TaskUsage(task="fetch", uses=4, successes=3),)
    assert (entry.retrievals, entry.last_trained_step, entry.source_success) == (7, 9, True)
    for _ in range(2):
        assert [hit.id for hit in (await store.search([request]))[0]] == [id]
        await store.update([entry])
    assert await store.load() == [entry]


async def test_a_missing_store_is_not_created_without_an_embedder(open_store: Open) -> None:
    with pytest.raises(StoreError, match=r"does not exist|is not an experience bank"):
        await open_store(embedding=None)


async def test_a_closed_store_raises(open_store: Open) -> None:
    store = await open_store()
    await store.close()
    for call in (store.load(), store.upsert(made(1), vectors(1)), store.search([SearchRequest(vectors(1)[0], 1)])):
        with pytest.raises(StoreError, match="is closed"):
            await call
