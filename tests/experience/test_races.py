"""Races between concurrent operations, named as in issue trackers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from waiting import Hold

from verl_comprl.experience import Add, Discard, Update
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.experience.transfer.snapshot import read_snapshot


async def test_duplicates_from_check_then_insert_across_a_model_call(
    open_bank: Any, apply: Any, embedder: FakeEmbedder
) -> None:
    """All writers embed at the same time; checked before the embedding, each would find the bank empty."""
    bank = await open_bank(dedup_similarity=0.999)
    embed, waiting, gate = embedder.embed_documents, 0, asyncio.Event()

    async def together(texts: Any) -> Any:
        nonlocal waiting
        waiting += 1
        if waiting == 8:
            gate.set()
        await gate.wait()
        return await embed(texts)

    embedder.embed_documents = together
    reports = await asyncio.gather(
        *(apply(bank, Add(title="lamp", content="light it"), call_id=f"call {n}") for n in range(8))
    )
    assert sorted(report.added for report in reports) == [0] * 7 + [1]
    assert sum(report.rejections.get("duplicate", 0) for report in reports) == 7 and len(bank) == 1


async def test_lost_counter_updates(open_bank: Any, apply: Any) -> None:
    """Counts of many concurrent queries, with flushes, rewrites and other writes, all reach the store."""
    bank = await open_bank(flush_seconds=0.002, scope="task")
    (a,) = (await apply(bank, Add(title="lamp", content="light it"), call_id="made", task="light")).new_ids
    found = 0

    async def use(number: int) -> None:
        nonlocal found
        for _ in range(10):
            answer = await bank.retrieve("lamp", task="light")
            found += answer.status == "found"  # not while it is in quarantine
            bank.record_outcome([a], success=number % 2 == 0)
            bank.record_training(["made"], step=number)

    async def disturb() -> None:
        for number in range(20):
            await bank.quarantine([a], "for a moment")
            await bank.release([a])
            await bank.flush()
            await apply(bank, Add(title=f"other {number}", content="text"), call_id=f"{number}", task="elsewhere")

    await asyncio.gather(disturb(), *(use(number) for number in range(32)))
    await bank.close()
    entry = (await open_bank()).get(a)
    assert (entry.retrievals, entry.uses, entry.successes, entry.trainings) == (found, 320, 160, 320)
    assert found  # how often depends on how long the quarantines are


async def test_ids_that_vanished_meanwhile(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    a, b = (await apply(bank, Add(title="a", content="x"), Add(title="b", content="y"), call_id="1")).new_ids
    await bank.delete([a])
    discard = await apply(bank, Discard(ids=(1,)), call_id="2", listed=[a, b])
    assert (discard.discarded, discard.rejections) == (0, {"vanished": 1})
    update = await apply(bank, Update(ids=(1,), title="A", content="new"), call_id="3", listed=[a, b])
    assert (update.updated, update.added, update.rejected) == (0, 1, 0)  # nothing is left to replace
    (added,) = update.new_ids
    assert bank.get(added).parents == ()
    assert await bank.delete([a, added]) == 1
    bank.record_outcome([a], success=True)
    await bank.quarantine([a], "reason")
    assert [entry.id for entry in bank.entries()] == [b] and await bank.verify() == []


async def test_eviction_racing_retrieval(open_bank: Any, apply: Any) -> None:
    """What is returned was in the bank at some moment of the call, and counting it brings nothing back."""
    bank = await open_bank(capacity=4, max_wait_ms=0.1)
    ever: set[str] = set()
    writing = True

    async def write() -> None:
        nonlocal writing
        for number in range(100):
            report = await apply(bank, Add(title=f"lamp {number}", content="light it"), call_id=f"{number}")
            ever.update(report.new_ids)
            assert len(bank) <= 4
        writing = False

    async def ask(seed: int) -> int:
        found = 0
        while writing:
            await asyncio.sleep(0)
            answer = await bank.retrieve(f"lamp {random.Random(seed).randrange(100)}")
            assert answer.status in (("found", "nothing") if not ever else ("found",))
            if answer.entry is not None:
                found += 1
                bank.record_outcome([answer.entry.id], success=True)
        return found

    asking = asyncio.gather(*(ask(seed) for seed in range(8)))
    await write()
    assert min(await asking) > 0 and len(bank) == 4
    await bank.flush()
    assert await bank.verify() == []
    assert {entry.id for entry in await bank._ledger.store.load()} <= ever


async def test_counts_while_every_vector_is_replaced(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    made = await apply(bank, *(Add(title=f"lamp {n}", content="light it") for n in range(3)), call_id="made")
    working = asyncio.create_task(bank.reembed(FakeEmbedder("other")))
    counts = 0
    while not working.done():
        bank.record_outcome(made.new_ids, success=True)
        counts += 1
        await asyncio.sleep(0)
    await bank.flush()
    assert counts > 1 and {entry.uses for entry in bank.entries()} == {counts}
    assert {entry.uses for entry in await bank._ledger.store.load()} == {counts} and await bank.verify() == []


async def test_queries_go_on_while_a_snapshot_is_read_and_a_writer_waits(
    open_bank: Any, apply: Any, tmp_path: Path, hold: Hold
) -> None:
    bank = await open_bank()
    await apply(bank, Add(title="lamp", content="light it"))
    begun, may_end = hold(EmbeddedStore, "vectors")
    saving = asyncio.create_task(bank.save(tmp_path / "snapshot"))
    await begun.wait()
    writing = asyncio.create_task(apply(bank, Add(title="door", content="open it"), call_id="second"))
    await asyncio.sleep(0.1)  # it is at its lock, wherever that is
    try:
        async with asyncio.timeout(30):
            assert (await bank.retrieve("lamp")).status == "found"
        assert len(bank) == 1 and not saving.done() and not writing.done()
    finally:
        may_end.set()
        await asyncio.gather(saving, writing)
    assert [entry.title for entry in read_snapshot(tmp_path / "snapshot", None).entries] == ["lamp"]
    assert len(bank) == 2


@pytest.mark.parametrize("change", ["restore", "reembed"])
async def test_queries_go_on_while_everything_is_replaced(
    open_bank: Any, apply: Any, tmp_path: Path, hold: Hold, change: str
) -> None:
    bank = await open_bank()
    (lamp,) = (await apply(bank, Add(title="lamp", content="light it"))).new_ids
    await bank.save(tmp_path / "snapshot")
    (door,) = (await apply(bank, Add(title="door", content="open it"), call_id="second")).new_ids
    begun, may_end = hold(EmbeddedStore, "_upsert")
    work = bank.restore(tmp_path / "snapshot") if change == "restore" else bank.reembed(FakeEmbedder("other"))
    replacement = asyncio.create_task(work)
    await begun.wait()
    async with asyncio.timeout(10):
        answer = await bank.retrieve("door")
    assert answer.entry is not None and answer.entry.id == door and not replacement.done()
    bank.record_outcome([door], success=True)
    may_end.set()
    await replacement
    answer = await bank.retrieve("door", read_only=True)
    assert answer.entry is not None and answer.entry.id == (lamp if change == "restore" else door)
    await bank.flush()
    assert await bank.verify() == [] and [path.name for path in (tmp_path / "bank").glob("shard-*")] == ["shard-1"]
