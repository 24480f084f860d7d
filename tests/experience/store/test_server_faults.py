"""Faults of a real server that reviews found: leases, aliases, limits, messages."""

import asyncio
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble
from samples import CALL, IDENTITY, entries, vectors
from waiting import Hold

from verl_comprl.experience import Add, BankConfig, ExperienceBank, StoreError, derive_id
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.store.server import ServerStore
from verl_comprl.experience.store.server_collection import ServerCollection
from verl_comprl.experience.store.server_lease import Lease

LEASE = "verl_comprl.experience.store.server_lease"


async def opened(config: BankConfig) -> ServerStore:
    return await ServerStore.open(config, embedding=IDENTITY)


@pytest.mark.parametrize("fresh", [True, False])
async def test_of_openers_at_the_same_moment_one_becomes_the_writer(
    config: BankConfig, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    for module in (LEASE, "verl_comprl.experience.store.server"):  # so that the others soon see that the winner lives
        monkeypatch.setattr(f"{module}.RENEW_SECONDS", 0.5)
    if not fresh:
        await (await opened(config)).close()
    results = await asyncio.gather(*(opened(config) for _ in range(6)), return_exceptions=True)
    writers = [result for result in results if isinstance(result, ServerStore)]
    assert len(writers) == 1 and all(isinstance(r, StoreError) for r in results if r is not writers[0])
    await writers[0].close()


async def test_an_opener_that_comes_too_late_with_its_claim_is_refused(config: BankConfig, hold: Hold) -> None:
    """It has read that the bank is free, and claims it when another process has become the writer."""
    await (await opened(config)).close()
    claiming, may_claim = hold(Lease, "_write")
    late = asyncio.create_task(opened(config))
    await claiming.wait()
    writer = await opened(config)
    may_claim.set()
    with pytest.raises(StoreError, match="is being written by process"):
        await late
    await writer.upsert(entries(1), vectors(1))
    await writer.close()


async def test_a_writer_that_lost_its_lease_writes_no_more_and_leaves_the_successor_alone(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await opened(config)
    monkeypatch.setattr(f"{LEASE}.LEASE_SECONDS", 0.0)  # it has expired
    monkeypatch.setattr(f"{LEASE}.RENEW_SECONDS", 0.0)
    monkeypatch.setattr("verl_comprl.experience.store.server.RENEW_SECONDS", 0.1)  # the second renews it soon
    second = await opened(config)
    monkeypatch.setattr(f"{LEASE}.LEASE_SECONDS", 30.0)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"this process is no longer its writer, process .* is"):
            await first.upsert(entries(1), vectors(1))
    await first.close()
    await second.upsert(entries(2), vectors(2))
    with pytest.raises(StoreError, match="is being written by process"):
        await opened(config)
    await second.close()


async def test_a_long_replacement_renews_the_lease(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(config)
    monkeypatch.setattr(f"{LEASE}.RENEW_SECONDS", 0.0)
    before = len([path for _, path in double.requests if path.endswith(".lease/points")])
    await store.replace_all(entries(200), vectors(200))
    after = len([path for _, path in double.requests if path.endswith(".lease/points")])
    assert (after - before) / 2 >= 4  # written and read back, for each of four requests
    await store.close()


async def test_a_lost_answer_about_the_alias_loses_no_entry(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    await store.upsert(entries(3), vectors(3))
    double.faults.only, double.faults.lost_answers = "/collections/aliases", 9  # every answer of it
    await store.replace_all(entries(2), vectors(2))
    double.faults.lost_answers = 0
    # Of several actions in one call a server may have made the first ones only.
    calls = [body["actions"] for body in double.bodies if isinstance(body, dict) and "actions" in body]
    assert calls and all([list(action) for action in call] == [["create_alias"]] for call in calls)
    await store.upsert(entries(4)[3:], vectors(4)[3:])
    await store.close()
    again = await opened(config)
    assert {entry.content for entry in await again.load()} == {"c0", "c1", "c3"}
    await again.close()


async def test_an_alias_that_moved_unseen_is_moved_back(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement has failed, as far as memory knows: what is added later must not vanish at the next opening."""
    store = await opened(config)
    await store.upsert(entries(3), vectors(3))
    before = dict(double.aliases)

    async def unseen(collection: ServerCollection, name: str) -> None:
        double.faults.only, double.faults.lost_answers = "/aliases", 99  # reading it back fails too
        await point_to(collection, name)

    point_to = ServerCollection.point_to
    with monkeypatch.context() as patch:
        patch.setattr(ServerCollection, "point_to", unseen)
        with pytest.raises(StoreError, match="502"):
            await store.replace_all(entries(2), vectors(2))
    assert double.aliases != before, "it has moved"
    double.faults.lost_answers = 0
    await store.upsert(entries(4)[3:], vectors(4)[3:])
    await store.close()
    again = await opened(config)
    assert {entry.content for entry in await again.load()} == {"c0", "c1", "c2", "c3"}
    await again.close()


async def test_queries_go_on_while_a_server_copies_the_bank(
    double: QdrantDouble, config: BankConfig, hold: Hold
) -> None:
    bank = await ExperienceBank.open(config, FakeEmbedder())
    await bank.apply([Add(title="lamp", content="light it")], call_id="1", **CALL)
    copying, may_end = hold(ServerCollection, "point_to")
    replacement = asyncio.create_task(bank.reembed(FakeEmbedder()))
    await copying.wait()
    async with asyncio.timeout(30):
        assert (await bank.retrieve("lamp")).status == "found"
    may_end.set()
    await replacement
    assert (await bank.retrieve("lamp")).status == "found"
    await bank.close()


async def test_a_failing_clean_up_does_not_undo_a_replacement(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    await store.upsert(entries(3), vectors(3))
    double.faults.only, double.faults.responses = f"{config.collection}.v1", [(503, {})] * 9
    await store.replace_all(entries(2), vectors(2))
    double.faults.responses = []
    assert await store.count() == 2 and len(await store.load()) == 2
    await store.close()
    await (await opened(config)).close()
    assert f"{config.collection}.v1" not in double.collections  # cleared away at the opening


async def test_a_missing_alias_opens_no_empty_bank(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    await store.replace_all(entries(2), vectors(2))
    await store.close()
    double.aliases.clear()
    with pytest.raises(StoreError, match=rf"has lost its alias.*point the alias {config.collection} to .*\.v2"):
        await opened(config)


async def test_a_foreign_collection_of_the_next_name_is_kept(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    double._create(f"{config.collection}.v2", {"vectors": {"size": 8, "distance": "Dot"}})
    await store.replace_all(entries(2), vectors(2))
    assert f"{config.collection}.v2" in double.collections
    assert double.aliases[config.collection] == f"{config.collection}.v3"
    await store.close()


async def test_a_bank_of_the_next_name_is_left_alone(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    other = await opened(config.model_copy(update={"collection": f"{config.collection}.v2"}))
    await store.replace_all(entries(2), vectors(2))
    assert double.aliases[config.collection] == f"{config.collection}.v3"
    assert await other.count() == 0 and await store.count() == 2
    await other.close()
    await store.close()


@pytest.mark.parametrize("number", [1, 2])
async def test_a_bank_named_like_a_collection_is_no_obstacle(
    double: QdrantDouble, config: BankConfig, number: int
) -> None:
    other = await opened(config.model_copy(update={"collection": f"{config.collection}.v{number}"}))
    store = await opened(config)
    await store.replace_all(entries(2), vectors(2))
    assert double.aliases[config.collection] == f"{config.collection}.v3"
    assert await other.count() == 0 and await store.count() == 2
    await other.close()
    await store.close()


async def test_a_busy_server_stalls_no_query_for_longer_than_one_request(
    double: QdrantDouble, config: BankConfig
) -> None:
    """One 429 with a long Retry-After degrades its query; the write and the queries behind it go on."""
    bank = await ExperienceBank.open(config, FakeEmbedder())
    await bank.apply([Add(title="lamp", content="light it")], call_id="1", **CALL)
    double.faults.only, double.faults.responses = "/points/query/batch", [(429, {"Retry-After": "9"})]
    assert (await bank.retrieve("lamp")).status == "degraded"
    assert sum(path.endswith("/points/query/batch") for _, path in double.requests) == 1, "it is not tried again"
    await bank.apply([Add(title="door", content="open it")], call_id="2", **CALL)
    assert (await bank.retrieve("lamp")).status == "found"
    await bank.close()


async def test_queries_go_on_while_a_write_waits_for_the_server(double: QdrantDouble, config: BankConfig) -> None:
    bank = await ExperienceBank.open(config, FakeEmbedder())
    await bank.apply([Add(title="lamp", content="light it")], call_id="1", **CALL)
    double.faults.only, double.faults.responses = ".v1/points", [(429, {"Retry-After": "10"})]
    write = asyncio.create_task(bank.apply([Add(title="door", content="open it")], call_id="2", **CALL))
    async with asyncio.timeout(30):
        while double.faults.responses:
            await asyncio.sleep(0.01)
    assert (await bank.retrieve("lamp")).status == "found" and not write.done()
    assert (await write).added == 1
    await bank.close()


async def test_a_server_that_forgot_everything_is_named(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    double.empty()
    with pytest.raises(StoreError, match="the bank has vanished from the server"):
        await store.search([SearchRequest(vectors(1)[0], 1)])
    with pytest.raises(StoreError, match=r"404 Not found: Collection .* The bank has vanished from the server\.$"):
        await store.count()
    await store._client.close()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_missing_key_is_named(double: QdrantDouble, config: BankConfig, status: int) -> None:
    double.faults.responses = [(status, {})]
    with pytest.raises(StoreError, match=f"{status}, the API key is missing or wrong: .*QDRANT_API_KEY"):
        await opened(config)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, "Service internal error: No space left on device: WAL buffer size exceeds available disk space"),
        (507, "provoked"),
    ],
)
async def test_a_full_disk_is_named_and_not_retried(
    double: QdrantDouble, config: BankConfig, status: int, text: str
) -> None:
    store = await opened(config)
    double.faults.text = text
    double.faults.only, double.faults.responses = ".v1/points", [(status, {})]
    with pytest.raises(StoreError, match="the server's disk is full"):
        await store.upsert(entries(1), vectors(1))
    assert await store.count() == 0
    await store.close()


async def test_retry_after_may_be_a_date(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    date = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    double.faults.only, double.faults.responses = ".v1/points", [(429, date)] * 2
    await store.upsert(entries(1), vectors(1))
    assert await store.count() == 1 and not double.faults.responses
    await store.close()


async def test_the_server_is_told_how_long_a_write_or_a_search_may_take(
    double: QdrantDouble, config: BankConfig
) -> None:
    store = await opened(config)
    await store.upsert(entries(2), vectors(2))
    await store.update(entries(2))
    await store.search([SearchRequest(vectors(1)[0], 1)])
    await store.delete([derive_id("e", 0)])
    points = f"/collections/{config.collection}.v1/points"
    sent = {path.removeprefix(points): found for path, found in double.parameters if path.startswith(points)}
    assert {path: found["timeout"] for path, found in sent.items()} == dict.fromkeys(
        ("", "/batch", "/query/batch", "/delete"), "60"
    )
    await store.close()


async def test_the_lease_is_read_from_most_nodes(double: QdrantDouble, config: BankConfig) -> None:
    await (await opened(config)).close()
    lease = [found for path, found in double.parameters if path == f"/collections/{config.collection}.lease/points"]
    assert {found.get("consistency") or found.get("ordering") for found in lease} >= {"majority", "strong"}
    assert all(found.get("consistency") == "majority" for found in lease if "wait" not in found)


async def test_long_entries_are_split_over_requests_by_their_size(double: QdrantDouble, config: BankConfig) -> None:
    store = await opened(config)
    long = [entry.model_copy(update={"content": "x" * 1_000_000}) for entry in entries(40)]
    await store.upsert(long, vectors(40))
    assert await store.count() == 40
    await store.close()


async def test_searches_are_exact_and_a_collection_that_cannot_be_read_yet_is_waited_for(
    double: QdrantDouble, config: BankConfig
) -> None:
    double.faults.creation_race, double.faults.unreadable_status = True, 500
    store = await opened(config)
    await store.search([SearchRequest(vectors(1)[0], 1)])
    assert double.bodies[-1]["searches"][0]["params"]["exact"] is True
    await store.close()


async def test_an_index_of_another_type_is_made_again(double: QdrantDouble, config: BankConfig) -> None:
    await (await opened(config)).close()
    indexes = double.collections[f"{config.collection}.v1"]["indexes"]
    indexes["task"] = indexes["task"] | {"data_type": "integer"}
    await (await opened(config)).close()
    assert indexes["task"]["data_type"] == "keyword"


@pytest.mark.parametrize(
    "metadata",
    [
        {"schema_version": [], "embedding": {"dimension": 8}},
        {"schema_version": 2, "embedding": {"dimension": "\x1b[2J"}},
        {"schema_version": 2, "embedding": "x"},
    ],
)
async def test_hostile_metadata_is_one_clear_error(double: QdrantDouble, config: BankConfig, metadata: Any) -> None:
    await (await opened(config)).close()
    double.collections[f"{config.collection}.v1"]["metadata"] = metadata
    with pytest.raises(StoreError, match="is not an experience bank") as caught:
        await ServerStore.open(config, embedding=None)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("lease", [{"owner": ["x"], "turn": "y", "pid": "\x1b[2J", "host": {}, "seen_at": "now"}, {}])
async def test_a_hostile_lease_is_no_raw_exception(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch, lease: Any
) -> None:
    monkeypatch.setattr(f"{LEASE}.RENEW_SECONDS", 0.01)
    store = await opened(config)
    import qdrant_edge as edge

    point = edge.Point(id=1, vector=[1.0], payload=lease)
    double.collections[f"{config.collection}.lease"]["shard"].update(edge.UpdateOperation.upsert_points([point]))
    with pytest.raises(StoreError) as caught:
        await opened(config)
    assert "\x1b" not in str(caught.value)
    await store._client.close()
