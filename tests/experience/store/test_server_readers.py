"""Readers of a server's bank beside its writer."""

import pytest
from fake_embedder import FakeEmbedder
from samples import CALL, IDENTITY, entries, vectors

from verl_comprl.experience import Add, BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.store.server import ServerStore


async def test_a_reader_follows_the_writer(config: BankConfig) -> None:
    writer = await ExperienceBank.open(config, FakeEmbedder())
    reader = await ExperienceBank.open(config, FakeEmbedder(), read_only=True)
    assert (await reader.retrieve("lamp")).status == "nothing"
    (lamp,) = (await writer.apply([Add(title="lamp", content="light it")], call_id="1", **CALL)).new_ids
    found = await reader.retrieve("lamp")
    assert found.entry is not None and found.entry.id == lamp
    await writer.reembed(FakeEmbedder())  # into another collection
    assert (await reader.retrieve("lamp")).status == "found"
    await writer.quarantine([lamp], "harmful")
    assert (await reader.retrieve("lamp")).status == "nothing"
    await writer.release([lamp])
    await writer.delete([lamp])
    assert (await reader.retrieve("lamp")).status == "nothing"
    await reader.close()
    await writer.close()


async def test_a_reader_sees_what_became_of_the_entries_it_has(config: BankConfig) -> None:
    writer = await ExperienceBank.open(config, FakeEmbedder())
    added = [Add(title=title, content="red") for title in ("lamp", "door", "key")]
    lamp, door, key = (await writer.apply(added, call_id="1", **CALL)).new_ids
    await writer.quarantine([door], "harmful")
    writer.record_outcome([lamp], success=True, task="t")
    reader = await ExperienceBank.open(config, FakeEmbedder(), read_only=True)
    await writer.quarantine([lamp], "harmful")
    await writer.release([door])
    await writer.flush()
    found = {entry.id: entry for entry, _ in await reader.search("lamp red")}
    assert found == {entry.id: entry for entry in writer.entries()} and found[lamp].uses == 1
    assert [entry.id for entry in reader.entries()] == [lamp, door, key]
    assert reader.statistics()["quarantined"] == 1
    await writer.quarantine([key], "harmful")
    answer = await reader.retrieve("door red")
    assert answer.entry is not None and answer.entry.id == door
    await reader.close()
    await writer.close()


async def test_a_reader_draws_nothing_that_was_quarantined_meanwhile(config: BankConfig) -> None:
    writer = await ExperienceBank.open(config, FakeEmbedder())
    added = [Add(title=title, content="red") for title in ("lamp", "door", "key")]
    lamp, door, key = (await writer.apply(added, call_id="1", **CALL)).new_ids
    reader = await ExperienceBank.open(config, FakeEmbedder(), read_only=True)
    await writer.reembed(FakeEmbedder())  # into another collection
    await writer.quarantine([lamp, key], "harmful")
    drawn = [(await reader.retrieve("", explore=True)).entry for _ in range(20)]
    assert {entry and entry.id for entry in drawn} == {door}
    await writer.quarantine([door], "harmful")
    assert (await reader.retrieve("", explore=True)).status == "nothing"
    await reader.close()
    await writer.close()


async def test_a_reader_draws_nothing_that_was_deleted_meanwhile(config: BankConfig) -> None:
    writer = await ExperienceBank.open(config, FakeEmbedder())
    added = [Add(title=title, content="red") for title in ("lamp", "door", "key")]
    lamp, door, key = (await writer.apply(added, call_id="1", **CALL)).new_ids
    reader = await ExperienceBank.open(config, FakeEmbedder(), read_only=True)
    await writer.delete([lamp, key])
    drawn = [(await reader.retrieve("", explore=True)).entry for _ in range(20)]
    assert {entry and entry.id for entry in drawn} == {door}
    await writer.delete([door])
    assert (await reader.retrieve("", explore=True)).status == "nothing" and not reader.entries()
    await reader.close()
    await writer.close()


async def test_a_search_leaves_the_memory_of_a_writer_alone(config: BankConfig) -> None:
    """It has counters that the store does not have yet."""
    writer = await ExperienceBank.open(config, FakeEmbedder())
    (lamp,) = (await writer.apply([Add(title="lamp", content="light it")], call_id="1", **CALL)).new_ids
    writer.record_outcome([lamp], success=True, task="t")
    ((entry, _),) = await writer.search("lamp")
    assert entry.uses == 1 and writer.entries() == [entry]
    await writer.close()


async def test_a_reader_says_that_a_bank_was_embedded_with_another_model(config: BankConfig) -> None:
    writer = await ServerStore.open(config, embedding=IDENTITY)
    reader = await ServerStore.open(config, embedding=IDENTITY, read_only=True)
    await writer.replace_all(entries(2), vectors(2), {"model": "other", "dimension": 8})
    with pytest.raises(StoreError, match="was embedded again by another process; open it again"):
        await reader.search([SearchRequest(vectors(1)[0], 1)])
    await reader.close()
    await writer.close()
