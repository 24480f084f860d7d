"""Failure modes of a Qdrant server and its client, one test each."""

import asyncio
import os
import pickle
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_embedder import FakeEmbedder
from qdrant_client import AsyncQdrantClient
from qdrant_double import QdrantDouble
from samples import CALL, IDENTITY, entries, vectors

from verl_comprl.experience import Add, BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.store import check_server
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.store.server import ServerStore
from verl_comprl.experience.store.server_client import ServerClient
from verl_comprl.experience.store.server_collection import ServerCollection


@pytest_asyncio.fixture
async def store(config: BankConfig) -> AsyncIterator[ServerStore]:
    store = await ServerStore.open(config, embedding=IDENTITY)
    yield store
    await store.close()


SEARCH = [SearchRequest(vectors(1)[0], 4)]


def calls(double: QdrantDouble, ending: str) -> int:
    return sum(path.endswith(ending) for _, path in double.requests)


async def test_creation_race(double: QdrantDouble, config: BankConfig) -> None:
    """Another process wins the creation, and its collection cannot be read for a moment."""
    double.faults.creation_race = True
    store = await ServerStore.open(config, embedding=IDENTITY)
    await store.upsert(entries(3), vectors(3))
    assert await store.count() == 3 and set(double.collections) == {
        f"{config.collection}.v1",
        f"{config.collection}.lease",
    }
    await store.close()


async def test_index_race_and_missing_index(double: QdrantDouble, config: BankConfig) -> None:
    """Missing indexes are created again at the next opening."""
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    collection = double.collections[f"{config.collection}.v1"]
    assert set(collection["indexes"]) == {"task", "environment", "state"}
    assert collection["indexes"]["task"]["params"]["is_tenant"] is True
    del collection["indexes"]["task"]
    store = await ServerStore.open(config, embedding=IDENTITY)
    assert set(collection["indexes"]) == {"task", "environment", "state"}
    await store.close()


async def test_a_writer_records_the_new_schema_of_a_bank_of_release_0_1_0(
    double: QdrantDouble, config: BankConfig
) -> None:
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    metadata = double.collections[f"{config.collection}.v1"]["metadata"]
    metadata["schema_version"] = 1
    await (await ServerStore.open(config, embedding=IDENTITY, read_only=True)).close()
    assert double.collections[f"{config.collection}.v1"]["metadata"]["schema_version"] == 1
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    assert double.collections[f"{config.collection}.v1"]["metadata"]["schema_version"] == 2


async def test_an_index_that_is_not_created_is_an_error(double: QdrantDouble, config: BankConfig) -> None:
    double.faults.ignore_indexes = True
    with pytest.raises(StoreError, match="has no index on task, environment, state"):
        await ServerStore.open(config, embedding=IDENTITY)


async def test_429_with_retry_after(double: QdrantDouble, store: ServerStore) -> None:
    await store.upsert(entries(3), vectors(3))
    double.faults.responses = [(429, {"Retry-After": "1"})]
    started = time.monotonic()
    assert await store.count() == 3
    assert 1.0 <= time.monotonic() - started < 30
    double.faults.responses = [(429, {"Retry-After": "3600"})]  # longer than any wait: the server counts as down
    with pytest.raises(StoreError, match="provoked"):
        await store.count()


async def test_5xx_is_retried_and_4xx_is_not(double: QdrantDouble, store: ServerStore) -> None:
    double.faults.responses = [(503, {}), (500, {})]
    await store.upsert(entries(3), vectors(3))
    assert await store.count() == 3
    for status in (400, 409, 422):
        double.faults.responses = [(status, {})]
        before = len(double.requests)
        with pytest.raises(StoreError, match=f"{status}.*provoked"):
            await store.search(SEARCH)
        assert len(double.requests) == before + 1
    double.faults.responses = [(503, {})] * 3
    with pytest.raises(StoreError, match="503"):
        await store.count()
    assert not double.faults.responses


async def test_creation_is_not_retried(double: QdrantDouble, config: BankConfig) -> None:
    double.faults.only = f"{config.collection}.v1"
    double.faults.responses = [(500, {})]
    with pytest.raises(StoreError, match="500"):
        await ServerStore.open(config, embedding=IDENTITY)
    assert [request for request in double.requests if request[0] == "PUT"] == [
        ("PUT", f"/collections/{config.collection}.v1")
    ]


async def test_timeouts(double: QdrantDouble, store: ServerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = ServerClient(BankConfig(url=double.url, collection="slow", timeout_seconds=1, attempts=1))
    double.faults.delay = 60.0
    started = time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"(Read|Connect)Timeout|no answer within 1 s"):
        patch.setattr(store, "_client", impatient)
        await store.search(SEARCH)
    double.faults.delay = 0.0
    assert time.monotonic() - started < 30
    await impatient.close()


async def test_pool_exhaustion_under_fan_out(double: QdrantDouble) -> None:
    """Searches that find no free connection wait; none fails."""
    config = BankConfig(url=double.url, collection="busy", max_in_flight=4, attempts=1, timeout_seconds=60)
    store = await ServerStore.open(config, embedding=IDENTITY)
    await store.upsert(entries(10), vectors(10))
    double.faults.delay, double.most_in_flight = 0.01, 0
    found = await asyncio.gather(*(store.search(SEARCH) for _ in range(100)))
    assert all(len(hits[0]) == 4 for hits in found)
    assert 2 <= double.most_in_flight <= 4
    double.faults.delay = 0.0
    await store.close()


async def test_errors_are_not_turned_into_no_memories(double: QdrantDouble, config: BankConfig) -> None:
    """A store that stops and starts under load: degraded is not nothing, and the bank recovers by itself."""
    bank = await ExperienceBank.open(config, FakeEmbedder())
    await bank.apply([Add(title="lamp", content="light it")], call_id="c", **CALL)
    statuses: list[str] = []
    done = asyncio.Event()

    async def ask(asker: int) -> None:
        for number in range(10_000):
            if done.is_set():
                return
            statuses.append((await bank.retrieve(f"lamp {asker} {number}")).status)

    askers = [asyncio.create_task(ask(n)) for n in range(8)]
    async with asyncio.timeout(60):
        while "found" not in statuses:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(double.stop)
        with pytest.raises(StoreError, match="ConnectError"):
            await bank.apply([Add(title="door", content="open it")], call_id="d", **CALL)
        while "degraded" not in statuses:
            await asyncio.sleep(0.01)
        found = statuses.count("found")
        await asyncio.to_thread(double.start)
        while statuses.count("found") == found:
            await asyncio.sleep(0.01)
    done.set()
    await asyncio.gather(*askers)
    assert {"found", "degraded"} == set(statuses) and statuses[0] == "found"
    assert (await bank.retrieve("lamp again")).status == "found"
    assert bank.statistics()["degraded"] == statuses.count("degraded")
    assert (await bank.apply([Add(title="door", content="open it")], call_id="d", **CALL)).added == 1
    assert await bank.verify() == []
    await bank.close()


async def test_an_unreachable_server(
    double: QdrantDouble, config: BankConfig, caplog: pytest.LogCaptureFixture
) -> None:
    await check_server(config)
    double.stop()
    with pytest.raises(StoreError, match=f"{config.collection} on {config.url}: ConnectError"):
        await check_server(config)
    assert not [record for record in caplog.records if record.name.startswith("stamina")]
    with pytest.raises(StoreError, match=f"{config.collection} on {config.url}: ConnectError"):
        await ServerStore.open(config, embedding=IDENTITY)
    double.start()


async def test_a_write_that_is_only_acknowledged_is_an_error(double: QdrantDouble, store: ServerStore) -> None:
    double.faults.status = "acknowledged"
    with pytest.raises(StoreError, match="is acknowledged, not completed"):
        await store.upsert(entries(1), vectors(1))
    double.faults.status = "completed"


async def test_concurrent_writers(config: BankConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("server", "server_lease"):  # so that an opening soon sees that the writer lives
        monkeypatch.setattr(f"verl_comprl.experience.store.{module}.RENEW_SECONDS", 0.5)
    store = await ServerStore.open(config, embedding=IDENTITY)
    with pytest.raises(StoreError, match=f"being written by process {os.getpid()} on .*close that run, or choose"):
        await ServerStore.open(config, embedding=IDENTITY)
    reader = await ServerStore.open(config, embedding=IDENTITY, read_only=True)
    await store.upsert(entries(3), vectors(3))
    assert await reader.count() == 3
    for write in (reader.upsert(entries(1), vectors(1)), reader.delete(["x"]), reader.update([]), reader.flush()):
        with pytest.raises(StoreError, match="opened read-only"):
            await write
    await reader.close()
    await store.close()
    await (await ServerStore.open(config, embedding=IDENTITY)).close()  # a closed bank has no writer


async def test_a_collection_that_is_not_a_bank(double: QdrantDouble, config: BankConfig) -> None:
    client = AsyncQdrantClient(url=double.url, check_compatibility=False)
    from qdrant_client import models

    shape = models.VectorParams(size=8, distance=models.Distance.DOT)
    await client.create_collection(config.collection, vectors_config=shape)
    with pytest.raises(StoreError, match="is a collection, not an experience bank; choose another name"):
        await ServerStore.open(config, embedding=IDENTITY)
    await client.create_collection("bare", vectors_config=shape)
    double.aliases["aliased"] = "bare"
    with pytest.raises(StoreError, match="is not an experience bank: it names no schema or no embedder"):
        await ServerStore.open(config.model_copy(update={"collection": "aliased"}), embedding=IDENTITY)
    await client.close()


async def test_the_api_key_comes_from_the_environment(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    with pytest.warns(UserWarning, match="insecure connection"):
        store = await ServerStore.open(config, embedding=IDENTITY)
    await store.close()
    assert double.keys == {"secret"}


@pytest.mark.parametrize("stage", ["create_next", "_upsert", "point_to"])
async def test_an_interrupted_replacement_leaves_the_old_content(
    double: QdrantDouble, config: BankConfig, store: ServerStore, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    await store.upsert(entries(5), vectors(5))

    async def crash(*arguments: Any, **settings: Any) -> None:
        raise StoreError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(ServerStore if stage == "_upsert" else ServerCollection, stage, crash)
        patch.setattr(ServerCollection, "drop", crash)  # nor can the new collection be deleted
        with pytest.raises(StoreError, match="crash"):
            await store.replace_all(entries(2), vectors(2))
    assert await store.count() == 5
    await store.close()
    again = await ServerStore.open(config, embedding=IDENTITY)
    assert await again.count() == 5
    await again.replace_all(entries(2), vectors(2))  # over what the crash left
    assert await again.count() == 2
    numbered = [name for name in double.collections if not name.endswith(".lease")]
    assert numbered == [double.aliases[config.collection]]
    await again.close()


async def test_an_incomplete_copy_is_detected(
    config: BankConfig, store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of copied entries is compared before the old content is deleted."""
    await store.upsert(entries(5), vectors(5))
    upsert = ServerStore._upsert

    async def lossy(self: ServerStore, name: str, entries: Any, vectors: Any) -> None:
        await upsert(self, name, entries[:-1], vectors[:-1])

    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "_upsert", lossy)
        with pytest.raises(StoreError, match="2 of 3 entries arrived"):
            await store.replace_all(entries(3), vectors(3))
    assert await store.count() == 5


def test_a_client_used_across_loops_or_pickled_into_an_actor(config: BankConfig) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    store = first.run_until_complete(ServerStore.open(config, embedding=IDENTITY))
    with pytest.raises(StoreError, match="opened in another event loop"):
        second.run_until_complete(store.count())
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(store)
    first.run_until_complete(store.close())
    first.close()
    second.close()


async def test_a_fork_of_the_process(store: ServerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: owner + 1)
        with pytest.raises(StoreError, match=f"opened in process {owner}, this is a fork"):
            await store.count()


async def test_a_cancelled_call_is_cancelled(double: QdrantDouble, store: ServerStore) -> None:
    double.faults.delay = 5.0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.search(SEARCH)
    double.faults.delay = 0.0
    assert await store.search(SEARCH) == [[]]
