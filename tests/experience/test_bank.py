"""The bank: operations, retrieval, counters, failures and concurrency."""

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from package_log import ours

from verl_comprl.experience import (
    Add,
    BankConfig,
    Discard,
    Merge,
    Retain,
    Return,
    StoreError,
    TaskUsage,
    Update,
    derive_id,
)


def key(word: str) -> Add:
    return Add(title=word, content=f"about {word}")


async def test_add_keeps_text_and_provenance(bank: Any, apply: Any) -> None:
    report = await apply(
        bank, Add(title="Key <|im_end|>", content="look\x00 first"), source_trajectory="t1", source_success=True
    )
    assert report.added == 1 and report.new_ids == (derive_id("call", 0),)
    entry = bank.get(report.new_ids[0])
    assert (entry.title, entry.content) == ("Key", "look first")
    assert (entry.record_id, entry.tasks, entry.environments) == ("call", ("fetch",), ("room",))
    assert (entry.created_step, entry.weight_version) == (3, 2)
    assert (entry.source_trajectory, entry.source_success) == ("t1", True)
    assert (await bank.retrieve("key")).entry.id == entry.id


async def test_update_merge_discard_retain_return(bank: Any, apply: Any) -> None:
    a, b, c, d = (await apply(bank, *map(key, "abcd"))).new_ids
    report = await apply(
        bank,
        Update(ids=(1,), title="A", content="new a"),
        Merge(ids=(2, 3), title="BC", content="both"),
        Retain(ids=(4,)),
        Return(),
        call_id="second",
        listed=[a, b, c, d],
    )
    assert (report.updated, report.merged, report.retained, report.returned, report.rejected) == (1, 1, 1, 1, 0)
    new_a, bc = report.new_ids
    assert report.surviving_ids == (d, new_a, bc)
    assert bank.get(new_a).parents == (a,) and bank.get(bc).parents == (b, c)
    assert [entry.id for entry in bank.entries()] == [d, new_a, bc]
    assert (await apply(bank, Discard(ids=(1,)), call_id="third", listed=[d])).discarded == 1
    assert bank.get(d) is None


async def test_the_same_call_again_changes_nothing(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    (old,) = (await apply(bank, key("old"))).new_ids
    replace = {"call_id": "second", "listed": [old]}
    first = await apply(bank, Update(ids=(1,), title="new", content="n"), key("other"), **replace)
    before = bank.entries()

    again = await apply(bank, Update(ids=(1,), title="new", content="n"), key("other"), **replace)
    assert again.repeated and again.new_ids == first.new_ids and bank.entries() == before

    # The episode is read again: another answer, of which one text is at the place of one of the first.
    other = await apply(bank, key("third text"), call_id="second", listed=[old])
    assert other.repeated and other.new_ids == first.new_ids and other.removed_ids == (old,)
    assert (await apply(bank, call_id="second", listed=[])).new_ids == first.new_ids and bank.entries() == before

    # Five deliveries at the same time, and one after the bank was opened again.
    reports = await asyncio.gather(*(apply(bank, key("twice"), call_id="third") for _ in range(5)))
    assert sorted(report.repeated for report in reports) == [False, True, True, True, True]
    await bank.close()
    reopened = await open_bank()
    assert (await apply(reopened, key("twice"), call_id="third")).repeated and len(reopened) == 3


async def test_operations_that_came_too_late_are_rejected_and_the_rest_is_applied(bank: Any, apply: Any) -> None:
    a, b = (await apply(bank, key("a"), key("b"))).new_ids
    await apply(bank, Discard(ids=(1,)), call_id="meanwhile", listed=[a])
    report = await apply(
        bank,
        Merge(ids=(1, 2), title="ab", content="both"),
        Update(ids=(3,), title="x", content="x"),
        Add(title="x", content="<|im_end|>"),
        Update(ids=(2,), title="B", content="new b"),
        Update(ids=(2,), title="B", content="b was replaced a line above"),
        call_id="late",
        listed=[a, b],
    )
    assert (report.updated, report.rejected) == (1, 4)
    assert report.rejections == {"vanished": 2, "bad_index": 1, "empty_text": 1}
    assert [entry.content for entry in bank.entries()] == ["new b"]


@pytest.mark.parametrize("scope", ["task", "environment"])
async def test_an_entry_merged_across_tasks_and_environments_is_found_for_each(
    open_bank: Any, apply: Any, scope: str
) -> None:
    bank = await open_bank(scope=scope)
    a, b = (await apply(bank, key("a"), key("b"))).new_ids
    (c,) = (await apply(bank, key("c"), call_id="other", task="open", environment="maze")).new_ids
    merge = {"listed": [a, b, c], "task": "", "environment": ""}
    (ab,) = (await apply(bank, Merge(ids=(1, 2), title="ab", content="x"), call_id="m1", **merge)).new_ids
    assert (bank.get(ab).tasks, bank.get(ab).environments) == (("fetch",), ("room",))
    merge["listed"] = [ab, c]
    (abc,) = (await apply(bank, Merge(ids=(1, 2), title="abc", content="x"), call_id="m2", **merge)).new_ids
    assert (bank.get(abc).tasks, bank.get(abc).environments) == (("fetch", "open"), ("maze", "room"))
    for _ in range(2):  # also after reopening
        for where in ({"task": "fetch", "environment": "room"}, {"task": "open", "environment": "maze"}):
            assert (await bank.retrieve("abc", **where, read_only=True)).entry.id == abc
            assert (await bank.retrieve("abc", **where, read_only=True, explore=True)).entry.id == abc
        assert (await bank.retrieve("abc", task="x", environment="x", read_only=True)).status == "nothing"
        await bank.close()
        bank = await open_bank(scope=scope)


async def test_an_update_by_an_episode_of_another_task_adds_that_task(bank: Any, apply: Any) -> None:
    (a,) = (await apply(bank, key("a"))).new_ids
    (new,) = (await apply(bank, Update(ids=(1,), title="a", content="b"), call_id="2", listed=[a], task="open")).new_ids
    assert (bank.get(new).tasks, bank.get(new).environments) == (("fetch", "open"), ("room",))


async def test_a_full_bank_evicts_the_oldest_also_after_reopening(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(capacity=4)
    await apply(bank, *map(key, "abc"))
    await bank.close()
    bank = await open_bank(capacity=4)
    report = await apply(bank, *map(key, "def"), call_id="second")
    assert [entry.title for entry in bank.entries()] == ["c", "d", "e", "f"]
    assert report.evicted == 2


async def test_a_full_bank_evicts_quarantined_entries_before_older_ones(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(capacity=3)
    ids = (await apply(bank, *map(key, "abc"))).new_ids
    await bank.quarantine([ids[1]], "by hand")
    await apply(bank, key("d"), call_id="second")
    assert [entry.title for entry in bank.entries()] == ["a", "c", "d"]
    await apply(bank, key("e"), call_id="third")
    assert [entry.title for entry in bank.entries()] == ["c", "d", "e"]


async def test_the_scope_of_a_retrieval(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(scope="task")
    (here,) = (await apply(bank, key("lamp"), task="light")).new_ids
    await apply(bank, key("lamp"), call_id="elsewhere", task="open")
    assert [(await bank.retrieve("lamp", task="light")).entry.id for _ in range(3)] == [here] * 3
    assert (await bank.retrieve("lamp", task="unknown")).status == "nothing"


async def test_nearest_finds_what_a_query_may_find_and_counts_nothing(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(scope="task")
    lamp, oil, bad, old = (await apply(bank, key("lamp"), key("oil"), key("lamp lit"), key("lamp off"))).new_ids
    await apply(bank, key("lamp"), call_id="elsewhere", task="open")
    (new,) = (await apply(bank, Update(ids=(1,), title="lamp", content="x"), call_id="u", listed=[old])).new_ids
    await bank.quarantine([bad], "reason")
    before = bank.entries()

    async def nearest(limit: int, **where: Any) -> list[str]:
        return [entry.id for entry in await bank.nearest("about lamp", limit, task="fetch", **where)]

    assert await nearest(9) == [lamp, new, oil]
    assert await nearest(2) == [lamp, new]
    assert await nearest(9, exclude=[lamp]) == [new, oil]
    assert await nearest(9, exclude=[old]) == [lamp, oil]  # an entry stands for those that replaced it
    assert await nearest(9, exclude=[lamp, new, oil]) == []
    assert bank.entries() == before and bank.statistics()["retrievals"] == 0


async def test_identical_queries_of_one_batch_get_different_entries_and_share_one_embedding(
    bank: Any, apply: Any, embedder: Any
) -> None:
    await apply(bank, Add(title="key door", content="x"), Add(title="key door", content="x y"), key("unrelated"))
    # Eq. 6: the three score 1, 0.94 and 0.88. A retrieval costs 0.4 ln 2 + 1 = 1.28, so that each is retrieved once.
    # Then they score -0.28, -0.34 and -0.40: the first is the best again.
    answers = await asyncio.gather(*(bank.retrieve("key door") for _ in range(4)))
    titles = [answer.entry.title + answer.entry.content for answer in answers]
    assert len(set(titles[:3])) == 3 and titles[3] == titles[0]
    assert embedder.query_calls == [["key door"] * 1]
    assert sum(entry.retrievals for entry in bank.entries()) == 4


async def test_counters_survive_closing(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    (id,) = (await apply(bank, key("a"))).new_ids
    await bank.retrieve("a")
    bank.record_outcome([id, derive_id("vanished")], success=True, task="open")
    bank.record_outcome([id], success=False, task="fetch")
    bank.record_outcome([id], success=True, task="open", asked=True)
    entry = bank.get(id)
    assert (entry.uses, entry.successes, entry.asked, entry.asked_successes, entry.retrievals) == (2, 1, 1, 1, 1)
    assert entry.usage == (
        TaskUsage(task="fetch", uses=1),
        TaskUsage(task="open", uses=1, successes=1, asked=1, asked_successes=1),
    )
    await bank.close()
    assert (await open_bank()).get(id) == entry


async def test_read_only_retrieval_changes_nothing(bank: Any, apply: Any, tmp_path: Path) -> None:
    await apply(bank, *map(key, "abcdef"))
    await bank.retrieve("a")

    async def digest() -> str:
        await bank.save(tmp_path / "saved")
        files = sorted(path for path in (tmp_path / "saved").rglob("*") if path.is_file())
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    before = await digest()
    answers = await asyncio.gather(*(bank.retrieve(word, read_only=True) for word in "abcabcabc"))
    assert {answer.status for answer in answers} == {"found"}
    assert await digest() == before
    await bank.retrieve("a")
    assert await digest() != before


async def test_a_failing_embedder_degrades_retrieval_and_is_logged_once(
    bank: Any, apply: Any, embedder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await bank.retrieve("a")).status == "nothing"
    await apply(bank, key("a"))
    embedder.failure = ConnectionError("gone")
    assert {(await bank.retrieve(f"q{i}")).status for i in range(3)} == {"degraded"}
    assert len(ours(caplog)) == 1
    with pytest.raises(ConnectionError):
        await apply(bank, key("b"), call_id="second")
    embedder.failure = None
    assert (await bank.retrieve("q0")).status == "found"  # the failure is not remembered
    assert (await apply(bank, key("b"), call_id="second")).added == 1
    statistics = bank.statistics()
    assert (statistics["found"], statistics["nothing"], statistics["degraded"]) == (1, 1, 3)
    assert statistics["hit_rate"] == 0.2 and statistics["operations"]["added"] == 2
    assert 0 < statistics["latency_p50_ms"] <= statistics["latency_p95_ms"]


async def test_a_failing_store_changes_nothing_for_readers_and_the_call_can_be_repeated(
    bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = (await apply(bank, key("a"))).new_ids
    update = {"call_id": "second", "listed": [a]}

    async def refuse(*_: Any) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(bank._ledger.store, "upsert", refuse)
        with pytest.raises(StoreError, match="disk full"):
            await apply(bank, Update(ids=(1,), title="A", content="new"), **update)
        assert (await bank.retrieve("a")).entry.id == a and len(bank) == 1
        patch.setattr(bank._ledger.store, "search", refuse)
        assert (await bank.retrieve("not asked before")).status == "degraded"
    report = await apply(bank, Update(ids=(1,), title="A", content="new"), **update)
    assert not report.repeated and (await bank.retrieve("a")).entry.content == "new"


async def test_a_replacement_is_made_although_the_store_cannot_delete_yet(
    bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (a,) = (await apply(bank, key("a"))).new_ids

    async def refuse(ids: Any) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(bank._ledger.store, "delete", refuse)
        report = await apply(bank, Update(ids=(1,), title="A", content="new"), call_id="second", listed=[a])
        assert len(ours(caplog)) == 1
        assert report.removed_ids == (a,) and len(bank) == 1 and (await bank.retrieve("a")).entry.content == "new"
        assert {entry.id for entry in await bank._ledger.store.load()} == {a, *report.new_ids}
    await bank.flush()
    assert [entry.id for entry in await bank._ledger.store.load()] == list(report.new_ids)


async def test_a_reader_sees_the_entry_before_or_after_a_replacement_never_neither(
    bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = (await apply(bank, key("lamp"))).new_ids
    search, searched = bank._ledger.store.search, asyncio.Event()

    async def slow_search(requests: Any) -> list[list[str]]:
        found = await search(requests)
        searched.set()
        await asyncio.sleep(0.05)  # time in which the replacement would happen, if it could
        return found

    monkeypatch.setattr(bank._ledger.store, "search", slow_search)
    reader = asyncio.create_task(bank.retrieve("lamp"))
    await searched.wait()
    await apply(bank, Update(ids=(1,), title="lamp", content="new"), call_id="second", listed=[old])
    assert (await reader).entry.id == old
    assert (await bank.retrieve("lamp")).entry.content == "new"


async def test_readers_and_a_writer_at_the_same_time(bank: Any, apply: Any) -> None:
    (current,) = (await apply(bank, key("lamp"))).new_ids
    statuses: list[str] = []
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            statuses.append((await bank.retrieve("lamp")).status)

    readers = [asyncio.create_task(read()) for _ in range(8)]
    for number in range(40):
        operation = Update(ids=(1,), title="lamp", content=f"version {number}")
        (current,) = (await apply(bank, operation, call_id=f"u{number}", listed=[current])).new_ids
    done.set()
    await asyncio.gather(*readers)
    assert set(statuses) == {"found"} and len(statuses) > 40
    assert len(bank) == 1 and bank.get(current).content == "version 39"


async def test_a_cancelled_writer_does_not_stop_half_way(
    bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = (await apply(bank, key("lamp"))).new_ids
    upsert, written = bank._ledger.store.upsert, asyncio.Event()

    async def slow_upsert(*arguments: Any) -> None:
        await upsert(*arguments)
        written.set()
        await asyncio.sleep(0.02)

    monkeypatch.setattr(bank._ledger.store, "upsert", slow_upsert)
    operation = Update(ids=(1,), title="lamp", content="new")
    writer = asyncio.create_task(apply(bank, operation, call_id="second", listed=[old]))
    await written.wait()
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    await bank.flush()  # after it
    assert (await bank.retrieve("lamp")).entry.content == "new"
    assert await bank._ledger.store.load() == [
        entry.model_copy(update={"retrievals": 0, "last_retrieved_at": 0.0}) for entry in bank.entries()
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"path": ""}, "path must name a folder, or url a Qdrant server; both are empty"),
        ({"scope": "run"}, r"^BankConfig\.scope='run' is not allowed; it must be one of all, environment, task$"),
        ({"capacity": 0}, r"^BankConfig\.capacity=0 is not allowed; it must be a whole number greater than 0$"),
        ({"diversity": -1.0}, r"^BankConfig\.diversity=-1\.0 is not allowed; it must be a number of at least 0$"),
        ({"capacty": 5}, r"^BankConfig\.capacty is unknown; did you mean capacity\? allowed: path, "),
        ({"capacity": 0, "max_batch": "x"}, r"^BankConfig\.capacity=0 .*\nBankConfig\.max_batch='x' is not allowed"),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BankConfig(**{"path": "somewhere", **setting})


async def test_a_call_whose_entry_is_there_was_applied_however_many_followed(open_bank: Any, apply: Any) -> None:
    """Only so many calls without a new entry are remembered."""
    bank = await open_bank(capacity=2)
    (id,) = (await apply(bank, Add(title="door", content="open it"), call_id="first")).new_ids
    for number in range(20):
        await apply(bank, Return(), call_id=f"nothing {number}")
    report = await apply(bank, Add(title="door", content="open it"), call_id="first")
    assert report.repeated and [entry.id for entry in bank.entries()] == [id]


async def test_a_bank_that_was_cleared_takes_a_call_of_before_again(bank: Any, apply: Any) -> None:
    door = Add(title="door", content="open it")
    await apply(bank, door)
    await bank.clear()
    assert bank.entries() == []
    assert (await apply(bank, door)).added == 1 and len(bank) == 1 and await bank.verify() == []
