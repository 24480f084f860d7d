"""A server that was started again without its storage, under an open bank: it gets back what memory has."""

import asyncio
import logging
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from package_log import ours
from qdrant_double import QdrantDouble
from samples import CALL
from waiting import Hold

from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, StoreError
from verl_comprl.experience.store.errors import StoreVanished
from verl_comprl.experience.store.server import ServerStore
from verl_comprl.experience.store.server_lease import Lease


async def filled(config: BankConfig, embedder: FakeEmbedder | None = None) -> ExperienceBank:
    """Return a bank with a used entry and a quarantined one."""
    bank = await ExperienceBank.open(config, embedder or FakeEmbedder())
    await bank.apply([Add(title="lamp", content="light it"), Add(title="door", content="open it")], call_id="1", **CALL)
    lamp, door = (entry.id for entry in bank.entries())
    bank.record_outcome([lamp], success=True, task="t")
    await bank.quarantine([door], "harmful")
    return bank


async def stored(config: BankConfig) -> list[Experience]:
    reader = await ExperienceBank.open(config, FakeEmbedder(), read_only=True)
    entries = reader.entries()
    await reader.close()
    return entries


async def test_the_next_write_brings_back_every_entry_with_its_counters(
    double: QdrantDouble, config: BankConfig, caplog: pytest.LogCaptureFixture
) -> None:
    bank = await filled(config)
    before = bank.entries()
    double.empty()
    with caplog.at_level(logging.WARNING, "verl_comprl.experience"):
        report = await bank.apply([Add(title="key", content="take it")], call_id="2", **CALL)
    (warning,) = ours(caplog)
    assert warning.getMessage().startswith(f"experience bank {config.collection} on {config.url}: 404 ")
    assert warning.getMessage().endswith(
        "The bank has vanished from the server. It has been made again from memory: 2 entries"
    )
    assert report.added == 1 and bank.entries()[:2] == before
    assert await bank.verify() == [] and bank.statistics()["rebuilds"] == 1
    found = {query: (await bank.retrieve(query)).status for query in ("lamp light it", "key take it")}
    assert found == {"lamp light it": "found", "key take it": "found"}
    written = bank.entries()
    await bank.close()
    assert await stored(config) == written
    again = await ExperienceBank.open(config, FakeEmbedder())  # the lease was given back
    await again.close()


@pytest.mark.parametrize("lost", ["everything", "entries"])
async def test_a_flush_before_a_snapshot_notices_it(
    double: QdrantDouble, config: BankConfig, tmp_path: Any, lost: str
) -> None:
    """Nothing is to be written then, and the lease was renewed a moment ago."""
    bank = await filled(config)
    await bank.flush()
    if lost == "everything":
        double.empty()
    else:
        double._drop(f"{config.collection}.v1", None)
    await bank.flush()
    await bank.save(tmp_path / "snapshot")
    assert await bank.verify() == [] and bank.statistics()["rebuilds"] == 1
    await bank.close()


async def test_a_server_that_is_emptied_while_the_lease_is_renewed_belongs_to_nobody_else(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the write of the lease and reading it back."""
    bank = await filled(config)
    before = bank.entries()
    write = Lease._write

    async def then_emptied(lease: Lease, owner: str) -> str:
        monkeypatch.setattr(Lease, "_write", write)
        mark = await write(lease, owner)
        double.empty()
        return mark

    monkeypatch.setattr(Lease, "_write", then_emptied)
    store: Any = bank._ledger.store
    with pytest.raises(StoreVanished, match=r"its lease is no longer on the server"):
        await store._lease.confirm()
    await bank.apply([Add(title="key", content="take it")], call_id="2", **CALL)
    assert bank.entries()[:2] == before and await bank.verify() == [] and bank.statistics()["rebuilds"] == 1
    await bank.close()


async def test_closing_leaves_the_bank_on_the_server(double: QdrantDouble, config: BankConfig) -> None:
    bank = await filled(config)
    await bank.flush()
    double.empty()
    entries = bank.entries()
    await bank.close()
    assert await stored(config) == entries


async def test_searches_find_nothing_in_a_bank_that_is_being_filled(
    double: QdrantDouble, config: BankConfig, hold: Hold
) -> None:
    """A part of its entries would be an answer, unlike a failure."""
    bank = await filled(config)
    filling, may_end = hold(ServerStore, "_upsert")
    double.empty()
    flush = asyncio.create_task(bank.flush())
    async with asyncio.timeout(60):
        await filling.wait()
        assert (await bank.retrieve("lamp light it")).status == "degraded"
        may_end.set()
        await flush
    assert (await bank.retrieve("lamp light it")).status == "found"
    await bank.close()


async def test_a_server_that_cannot_change_its_alias_yet_delays_it(double: QdrantDouble, config: BankConfig) -> None:
    """Nothing has the alias then, and the collection in use is gone."""
    bank = await filled(config.model_copy(update={"flush_seconds": 3600.0}))
    double.empty()
    double.faults.only, double.faults.responses = "/collections/aliases", [(503, {})] * config.attempts
    with pytest.raises(StoreError, match="503"):
        await bank.flush()
    await bank.flush()
    assert await bank.verify() == [] and bank.statistics()["rebuilds"] == 1
    entries = bank.entries()
    await bank.close()
    assert await stored(config) == entries
    names = {name for name in double.collections if not name.endswith(".lease")}
    assert names == {double.aliases[config.collection]}, "what the first attempt has filled is left behind"


async def test_an_embedder_that_is_away_delays_it(double: QdrantDouble, config: BankConfig) -> None:
    embedder = FakeEmbedder()
    bank = await filled(config, embedder)
    double.empty()
    embedder.failure = RuntimeError("no route")
    with pytest.raises(StoreVanished, match=r"cannot be embedded again yet: no route"):
        await bank.flush()
    embedder.failure = None
    await bank.flush()
    assert await bank.verify() == []
    await bank.close()


async def test_a_renewal_meanwhile_does_not_lose_the_new_lease(
    double: QdrantDouble, config: BankConfig, hold: Hold
) -> None:
    """It would find one that nobody holds, as if another process were taking it."""
    bank = await filled(config)
    lease: Lease = bank._ledger.store._lease  # type: ignore[attr-defined]
    created, may_go_on = hold(Lease, "_create", after=True)
    double.empty()
    flush = asyncio.create_task(bank.flush())
    async with asyncio.timeout(60):
        await created.wait()
        renewal = asyncio.create_task(lease.confirm())
        await asyncio.wait([renewal], timeout=0.5)  # unless it waits, this is ample
        may_go_on.set()
        await asyncio.gather(flush, renewal)
    await bank.apply([Add(title="key", content="take it")], call_id="2", **CALL)
    assert await bank.verify() == []
    await bank.close()


async def test_a_bank_that_another_process_has_made_meanwhile_is_left_alone(
    double: QdrantDouble, config: BankConfig
) -> None:
    bank = await filled(config)
    double.empty()
    other = await ExperienceBank.open(config, FakeEmbedder())
    with pytest.raises(StoreError, match=r"is being written by process|is no longer its writer"):
        await bank.flush()
    assert await other.verify() == [] and len(other) == 0
    await other.close()
    with pytest.raises(StoreError):
        await bank.close()
