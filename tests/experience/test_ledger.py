"""Writing of counters, read-only banks, other event loops, and a responsive event loop."""

import asyncio
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from package_log import ours
from waiting import Hold, until

from verl_comprl.experience import Add, BankConfig, Downvote, ExperienceBank, StoreError, Update, Upvote


async def stored(bank: Any) -> dict[str, Any]:
    return {entry.id: entry for entry in await bank._ledger.store.load()}


async def written(bank: Any, id: str) -> bool:
    return (await stored(bank))[id].uses > 0


async def test_counters_are_written_within_the_flush_interval(
    open_bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = await open_bank(flush_seconds=0.02)
    a, b = (await apply(bank, Add(title="a", content="x"), Add(title="b", content="y"))).new_ids
    update, may_write = bank._ledger.store.update, asyncio.Event()

    async def held(entries: Any) -> None:
        await may_write.wait()
        await update(entries)

    monkeypatch.setattr(bank._ledger.store, "update", held)
    bank.record_outcome([a], success=True)
    assert (await stored(bank))[a].uses == 0  # in memory only
    may_write.set()
    await until(lambda: written(bank, a))
    assert (await stored(bank))[a].uses == 1 and (await stored(bank))[b].uses == 0


@pytest.mark.parametrize("error", [StoreError("disk full"), TypeError("a defect")])
async def test_a_failing_flush_is_counted_logged_once_and_repeated(
    open_bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bank = await open_bank(flush_seconds=0.02)
    (a,) = (await apply(bank, Add(title="a", content="x"))).new_ids

    async def refuse(entries: Any) -> None:
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(bank._ledger.store, "update", refuse)
        bank.record_outcome([a], success=True)
        await until(lambda: bank.statistics()["counter_flush_failures"] >= 2)
        assert len(ours(caplog)) == 1
        failed = bank.statistics()["counters_unwritten_seconds"]
        await asyncio.sleep(0.1)
        assert bank.statistics()["counters_unwritten_seconds"] >= failed + 0.1  # a failure is no write
    await until(lambda: written(bank, a))


async def test_it_is_known_for_how_long_counters_have_not_been_written(open_bank: Any) -> None:
    bank = await open_bank(flush_seconds=600)
    await asyncio.sleep(0.2)
    assert 0.2 <= bank.statistics()["counters_unwritten_seconds"] < 100
    started = time.monotonic()
    await bank.flush()
    assert bank.statistics()["counters_unwritten_seconds"] <= time.monotonic() - started


async def test_training_and_votes_are_counted_with_the_entries_of_the_call(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    a, b = (await apply(bank, Add(title="a", content="x"), Add(title="b", content="y"), call_id="one")).new_ids
    (c,) = (await apply(bank, Add(title="c", content="z"), call_id="two")).new_ids
    bank.record_training(["one", "unknown", ""], step=7)
    bank.record_training(["one"], step=9)
    report = await apply(
        bank,
        Upvote(ids=(1, 3)),
        Downvote(ids=(1,)),
        Upvote(ids=(2,)),
        Update(ids=(2,), title="B", content="new"),
        call_id="three",
        listed=[a, b, c],
    )
    assert (report.upvoted, report.downvoted, report.updated) == (2, 1, 1)
    await apply(bank, Upvote(ids=(1,)), call_id="three", listed=[a])  # the same call again
    await bank.close()
    bank = await open_bank()
    entry = bank.get(a)
    assert (entry.trainings, entry.last_trained_step, entry.upvotes, entry.downvotes) == (2, 9, 1, 1)
    assert (bank.get(c).trainings, bank.get(c).upvotes) == (0, 1)
    assert bank.get(b) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_vote_on_an_entry_that_the_same_answer_updates_is_reported(
    open_bank: Any, apply: Any, order: tuple[int, int]
) -> None:
    bank = await open_bank()
    (a,) = (await apply(bank, Add(title="a", content="x"))).new_ids
    operations = [Upvote(ids=(1,)), Update(ids=(1,), title="a", content="better")]
    report = await apply(bank, *(operations[index] for index in order), call_id="second", listed=[a])
    assert (report.upvoted, report.updated, report.rejections) == (1, 1, {})
    (entry,) = bank.entries()
    assert (entry.content, entry.upvotes) == ("better", 0)  # it was a vote on the old text


async def test_a_read_only_bank_refuses_to_write_and_counts_nothing(open_bank: Any, apply: Any, tmp_path: Path) -> None:
    bank = await open_bank()
    (a,) = (await apply(bank, Add(title="a", content="x"))).new_ids
    await bank.close()
    bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), FakeEmbedder(), read_only=True)
    found = (await bank.retrieve("a")).entry
    assert found is not None and found.retrievals == 0
    for write in (
        lambda: apply(bank, Add(title="b", content="y"), call_id="second"),
        lambda: bank.delete([a]),
        lambda: bank.quarantine([a], "why"),
        bank.flush,
    ):
        with pytest.raises(StoreError, match="opened read-only"):
            await write()
    await bank.close()


async def test_a_quarantine_without_a_reason_is_refused(open_bank: Any, apply: Any) -> None:
    """An empty reason is how an entry says that it is not in quarantine."""
    bank = await open_bank()
    (a,) = (await apply(bank, Add(title="a", content="x"))).new_ids
    await bank.quarantine([a], "harmful")
    with pytest.raises(ValueError, match="must not be empty"):
        await bank.quarantine([a], "")
    assert bank.get(a).quarantined == "harmful"
    await bank.release([a])
    assert bank.get(a).quarantined == ""


def test_another_event_loop_gets_a_clear_error(tmp_path: Path) -> None:
    config = BankConfig(path=str(tmp_path))
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    bank = first.run_until_complete(ExperienceBank.open(config, FakeEmbedder()))
    call: dict[str, Any] = {"listed": (), "task": "", "environment": "", "step": 0, "weight_version": 0}
    with pytest.raises(StoreError, match="opened in another event loop"):
        second.run_until_complete(bank.apply([Add(title="a", content="x")], call_id="c", **call))
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(bank)
    first.run_until_complete(bank.close())
    first.close()
    second.close()


async def test_the_event_loop_stays_responsive_during_many_queries(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    for call in range(20):
        await apply(bank, *(Add(title=f"t{call}-{n}", content="x") for n in range(100)), call_id=f"c{call}")
    stalls: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            stalls.append(loop.time() - before)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(bank.retrieve(f"question {n}") for n in range(1024)))
    watcher.cancel()
    assert len(stalls) > 20  # ideally one per micro-batch, of which there are 64; timers are slow


async def test_a_bank_that_is_being_written_is_whole(open_bank: Any, apply: Any, hold: Hold) -> None:
    """New entries are in the store before they are in memory: between the two they are no difference."""
    bank = await open_bank()
    await apply(bank, Add(title="a", content="x"))
    stored_one, go_on = hold(bank._ledger.store, "upsert", after=True)
    writing = asyncio.create_task(apply(bank, Add(title="b", content="y"), call_id="second"))
    await stored_one.wait()
    verifying = asyncio.create_task(bank.verify())
    await asyncio.sleep(0.2)
    go_on.set()
    await writing
    assert await verifying == [] and len(bank) == 2
