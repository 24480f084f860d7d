"""The experience manager on a real bank, with an extractor that answers from a script."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience, see conftest)

from verl_comprl.experience import Add, BankConfig, ExperienceBank
from verl_comprl.experience.schema import DistillationRequest, derive_id
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.service import (
    NOTHING_FOUND,
    UNAVAILABLE,
    Answer,
    EpisodeReport,
    ExperienceManager,
    Guide,
    ManagerConfig,
)

MakeRequest = Callable[..., DistillationRequest]
WHERE = ("fetch", "room")  # task and environment
RETURN = '<answer>[{"operation": "return"}]</answer>'


def answered(*operations: dict[str, Any]) -> str:
    return f"<answer>{json.dumps(operations)}</answer>"


LESSON = answered({"operation": "add", "title": "open the door", "content": "take the key first"})


class Extractor:
    """Replies per kind of call: a text, an exception to raise, or the next of a list of them.

    While ``gate`` is not set, every call waits.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {"distill": RETURN, "merge": "?", "answer": "<answer>try left</answer>"}
        self.prompts: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, prompt: str) -> str:
        kind = "answer" if "Question:\n" in prompt else "merge" if "Entries:\n" in prompt else "distill"
        self.prompts.append((kind, prompt))
        await self.gate.wait()
        reply = self.replies[kind]
        if isinstance(reply, list):
            reply = reply.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Setup:
    """A manager with its parts in reach."""

    def __init__(self, manager: ExperienceManager, bank: ExperienceBank, calls: ExtractorCalls) -> None:
        self.manager = manager
        self.bank = bank
        self.calls = calls

    def start(self) -> None:
        self.manager.start(self.calls)

    async def seed(self, *titles: str, call_id: str = "seed") -> list[str]:
        """Put entries into the bank as if they had been imported."""
        operations = [Add(title=title, content=f"about {title}") for title in titles]
        report = await self.bank.apply(
            operations, call_id=call_id, listed=(), task="fetch", environment="room", step=0, weight_version=0
        )
        return list(report.new_ids)

    async def finished(self) -> dict[str, float]:
        assert await self.manager.drain(5)
        return await self.manager.metrics()


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def extractor() -> Extractor:
    return Extractor()


Open = Callable[..., Awaitable[Setup]]


@pytest_asyncio.fixture
async def open_manager(
    tmp_path: Path, embedder: FakeEmbedder, extractor: Extractor, make_calls: Callable[..., ExtractorCalls]
) -> AsyncIterator[Open]:
    opened: list[ExperienceManager] = []

    async def open_(folder: str = "bank", **settings: Any) -> Setup:
        defaults: dict[str, Any] = {
            "batch_size": 1,
            "alpha": 0.5,
            "cooldown": 1,
            "merge_chunk": 5,
            "format_failure_reward": -1.0,
            "distillation_workers": 2,
            "answer_timeout": 5.0,
        }
        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / folder)), embedder)
        manager = ExperienceManager(ManagerConfig(**{**defaults, **settings}), bank)
        opened.append(manager)
        return Setup(manager, bank, make_calls(extractor))

    yield open_
    for manager in opened:
        await manager.close()


@pytest_asyncio.fixture
async def running(open_manager: Open) -> Setup:
    setup = await open_manager()
    setup.start()
    return setup


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.005)


async def merged(setup: Setup, passes: int = 1) -> None:
    async def done() -> bool:
        return (await setup.manager.metrics())["merge/passes"] == passes

    await until(done)


# ---- one experience from episode to reward ----


async def test_an_episode_becomes_an_entry_that_guides_and_is_rewarded(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    manager = running.manager
    assert await manager.guide("open the door", *WHERE) == Guide("nothing")

    extractor.replies["distill"] = LESSON
    await manager.report(EpisodeReport(make_request("first", success=True, step=1), guided=False))
    metrics = await running.finished()
    assert (metrics["bank/size"], metrics["operations/added"]) == (1, 1)
    assert (metrics["queue/depth"], metrics["buffer/records"]) == (0, 1)
    (entry,) = running.bank.entries()
    record_id = derive_id("distill", "first")
    assert (entry.record_id, entry.source_trajectory, entry.source_success) == (record_id, "first", True)
    assert (entry.task, entry.environment, entry.created_step, entry.weight_version) == ("fetch", "room", 1, 7)

    text = "open the door\ntake the key first"
    guide = await manager.guide("open the door", *WHERE)
    assert guide == Guide("found", text, entry.id, record_id)

    extractor.replies["distill"] = RETURN
    for id, success in (("a", True), ("b", False), ("c", True)):
        request = make_request(id, success=success, experience_ids=(entry.id,), step=2)
        await manager.report(EpisodeReport(request, guided=True, record_ids=(record_id,)))
    await running.finished()
    assert all(f"1. {text}" in prompt for _, prompt in extractor.prompts[1:]) and len(extractor.prompts) == 4
    used = running.bank.get(entry.id)
    assert used is not None and (used.uses, used.successes) == (3, 2)

    assert (await manager.collect(2))["extractor/samples"] == 1
    batch = await manager.next_batch()
    assert batch is not None and [record.id for record in batch.records] == [record_id]
    assert batch.rewards == pytest.approx([(1 - 1 + 1) / 3])
    await manager.trained()
    assert await manager.next_batch() is None and (await manager.metrics())["buffer/samples"] == 0


async def test_every_record_an_episode_used_gets_its_outcome_and_a_free_one_gives_none(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    manager = running.manager
    extractor.replies["distill"] = [LESSON, LESSON, *[RETURN] * 3]
    for id in ("x", "y"):
        await manager.report(EpisodeReport(make_request(id), guided=False))
    await running.finished()
    x, y = (derive_id("distill", id) for id in ("x", "y"))
    answer = (await manager.search_and_ask("open the door", *WHERE)).record_id
    assert answer is not None

    await manager.report(EpisodeReport(make_request("1", success=True), guided=True, record_ids=(x, answer)))
    await manager.report(EpisodeReport(make_request("2", success=False), guided=True, record_ids=(x,)))
    await manager.report(EpisodeReport(make_request("3", success=False), guided=False, record_ids=(x, y)))
    assert (await manager.collect(1))["extractor/samples"] == 2
    rewards = {}
    while batch := await manager.next_batch():
        rewards[batch.records[0].id] = batch.rewards[0]
        await manager.trained()
    assert rewards == {x: 0.0, answer: 1.0}


async def test_a_second_report_of_an_episode_changes_nothing(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    (entry,) = await running.seed("open the door")
    report = EpisodeReport(make_request("a", success=True, experience_ids=(entry,)), guided=True)
    await running.manager.report(report)
    await running.manager.report(report)
    await running.finished()
    await running.manager.report(report)  # also when it has been distilled
    await running.finished()
    used = running.bank.get(entry)
    assert used is not None and used.uses == 1 and len(extractor.prompts) == 1


# ---- an extractor that answers badly, late or not at all ----


@pytest.mark.parametrize("reward", [-1.0, -0.25])
async def test_a_format_failure_changes_nothing_and_is_rewarded_for_that(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, reward: float
) -> None:
    setup = await open_manager(format_failure_reward=reward)
    setup.start()
    extractor.replies["distill"] = "I would rather not."
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    metrics = await setup.finished()
    assert (metrics["parse_failures/no_answer"], metrics["bank/size"]) == (1, 0)
    await setup.manager.collect(1)
    batch = await setup.manager.next_batch()
    assert batch is not None and batch.rewards == [reward] and batch.records[0].id == derive_id("distill", "a")


async def test_one_bad_operation_is_counted_and_the_good_one_applied(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.replies["distill"] = answered(
        {"operation": "shout"}, {"operation": "add", "title": "t", "content": "kept"}
    )
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    metrics = await running.finished()
    assert metrics["parse_failures/unknown_operation"] == 1 and metrics["bank/size"] == 1
    assert (await running.manager.collect(1))["extractor/samples"] == 0  # not a format failure


async def test_a_failing_extractor_is_counted_logged_once_and_survived(
    running: Setup, extractor: Extractor, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    extractor.replies["distill"] = [RuntimeError("server is gone"), RuntimeError("still gone"), LESSON]
    with caplog.at_level(logging.WARNING, "verl_comprl.service"):
        for id in ("a", "b", "c"):
            await running.manager.report(EpisodeReport(make_request(id), guided=False))
        metrics = await running.finished()
    assert metrics["failures/distill:RuntimeError"] == 2
    assert (metrics["bank/size"], metrics["queue/depth"]) == (1, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "distill failed (further ones are counted only): server is gone"
    ]


async def test_drain_gives_up_after_its_timeout(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.gate.clear()
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    assert not await running.manager.drain(0.02)
    assert (await running.manager.metrics())["queue/depth"] == 1
    extractor.gate.set()
    assert await running.manager.drain(5)


async def test_a_slow_extractor_does_not_hold_up_retrieval(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    await running.seed("open the door")
    extractor.gate.clear()
    for number in range(4):
        await running.manager.report(EpisodeReport(make_request(str(number)), guided=False))
    await running.manager.merge()
    async with asyncio.timeout(2):
        assert (await running.manager.guide("open the door", *WHERE)).status == "found"
        await running.manager.collect(1)


async def test_a_failing_store_is_a_degraded_answer(running: Setup, embedder: FakeEmbedder) -> None:
    await running.seed("open the door")
    embedder.failure = RuntimeError("out of memory")
    assert await running.manager.guide("where?", *WHERE) == Guide("degraded")
    assert await running.manager.search_and_ask("where?", *WHERE) == Answer("degraded", UNAVAILABLE)
    metrics = await running.manager.metrics()
    assert (metrics["guides/degraded"], metrics["answers/degraded"]) == (1, 1)


# ---- search_and_ask ----


async def test_an_empty_bank_answers_without_the_extractor(running: Setup, extractor: Extractor) -> None:
    assert await running.manager.search_and_ask("where?", *WHERE) == Answer("nothing", NOTHING_FOUND)
    assert extractor.prompts == [] and (await running.manager.metrics())["answers/nothing"] == 1


async def test_an_answer_comes_from_the_entry_and_is_a_record(running: Setup, extractor: Extractor) -> None:
    await running.seed("open the door", "cross the lava")
    answer = await running.manager.search_and_ask("how to cross the lava", *WHERE)
    assert (answer.status, answer.text) == ("answered", "try left") and answer.record_id
    assert "about cross the lava" in extractor.prompts[0][1] and "how to cross the lava" in extractor.prompts[0][1]
    metrics = await running.manager.metrics()
    assert (metrics["answers/answered"], metrics["buffer/records"]) == (1, 1)


async def test_a_malformed_answer_is_nothing_found_and_costs_its_record(running: Setup, extractor: Extractor) -> None:
    await running.seed("open the door")
    extractor.replies["answer"] = "no tags"
    assert await running.manager.search_and_ask("open the door", *WHERE) == Answer("malformed", NOTHING_FOUND)
    await running.manager.collect(1)
    batch = await running.manager.next_batch()
    assert batch is not None and batch.rewards == [-1.0] and batch.records[0].kind == "answer"


async def test_a_late_answer_is_given_up(open_manager: Open, extractor: Extractor) -> None:
    setup = await open_manager(answer_timeout=0.05)
    setup.start()
    await setup.seed("open the door")
    extractor.gate.clear()
    async with asyncio.timeout(2):
        answer = await setup.manager.search_and_ask("open the door", *WHERE)
    assert answer == Answer("failed", UNAVAILABLE)
    metrics = await setup.manager.metrics()
    assert metrics["failures/search_and_ask:TimeoutError"] == 1 and metrics["buffer/records"] == 0


async def test_before_the_extractor_is_connected_there_is_no_answer(open_manager: Open) -> None:
    setup = await open_manager()
    await setup.seed("open the door")
    assert (await setup.manager.guide("open the door", *WHERE)).status == "found"
    assert await setup.manager.search_and_ask("open the door", *WHERE) == Answer("failed", UNAVAILABLE)


async def test_reading_for_an_evaluation_changes_nothing(running: Setup, extractor: Extractor) -> None:
    await running.seed("open the door")
    entries = running.bank.entries()

    def counted(metrics: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if not name.startswith("bank/")}

    before = counted(await running.manager.metrics())
    extractor.replies["answer"] = ["<answer>try left</answer>", "malformed"]
    assert (await running.manager.guide("open the door", *WHERE, read_only=True)).status == "found"
    assert (await running.manager.search_and_ask("open the door", *WHERE, read_only=True)).text == "try left"
    assert (await running.manager.search_and_ask("open the door", *WHERE, read_only=True)).status == "malformed"
    assert running.bank.entries() == entries and counted(await running.manager.metrics()) == before
    assert (await running.manager.collect(1))["extractor/samples"] == 0


# ---- merge ----


async def test_a_merge_pass_goes_through_the_bank_and_carries_its_results(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(merge_chunk=2)
    setup.start()
    await setup.seed("a", "b", "c")
    extractor.replies["merge"] = [
        answered({"operation": "merge", "ids": [1, 2], "title": "ab", "content": "both"}),
        answered({"operation": "retain", "ids": [1]}, {"operation": "discard", "ids": [2]}),
    ]
    extractor.gate.clear()
    assert await setup.manager.merge()
    assert not await setup.manager.merge()  # one at a time
    extractor.gate.set()
    await merged(setup)

    (entry,) = setup.bank.entries()
    assert entry.text == "ab\nboth" and (entry.task, entry.environment) == ("fetch", "room")
    assert "1. ab\nboth\n\n2. c\nabout c" in extractor.prompts[1][1]  # the first chunk's output is in the second
    metrics = await setup.manager.metrics()
    assert {name: metrics[f"operations/{name}"] for name in ("merged", "retained", "discarded")} == {
        "merged": 1,
        "retained": 1,
        "discarded": 1,
    }

    # The entry belongs to the merge call that wrote it.
    guide = await setup.manager.guide("ab both", *WHERE)
    assert guide.record_id == entry.record_id
    request = make_request("a", success=True, experience_ids=(entry.id,))
    await setup.manager.report(EpisodeReport(request, guided=True, record_ids=(entry.record_id,)))
    await setup.manager.collect(1)
    batch = await setup.manager.next_batch()
    assert batch is not None and (batch.records[0].kind, batch.rewards) == ("merge", [1.0])


async def test_a_chunk_that_fails_keeps_its_entries_and_the_pass_goes_on(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(merge_chunk=2)
    setup.start()
    ids = await setup.seed("a", "b", "c", "d", "e", "f")
    extractor.replies["merge"] = [
        RuntimeError("server is gone"),
        "unreadable",
        answered({"operation": "discard", "ids": [1]}),
    ]
    assert await setup.manager.merge()
    await merged(setup)
    assert [entry.id for entry in setup.bank.entries()] == [*ids[:4], ids[5]]
    metrics = await setup.manager.metrics()
    assert (metrics["failures/merge:RuntimeError"], metrics["parse_failures/no_answer"]) == (1, 1)
    assert (await setup.manager.collect(1))["extractor/samples"] == 1  # the unreadable answer
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1]})
    assert await setup.manager.merge()
    await merged(setup, passes=2)


# ---- save and restore ----

# The bank counts retrievals and latencies from its opening.
_SINCE_OPENING = ("retrievals", "found", "nothing", "degraded", "hit_rate", "latency_p50_ms", "latency_p95_ms")


def lasting(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.removeprefix("bank/") not in _SINCE_OPENING}


async def test_a_run_goes_on_where_its_snapshot_was_taken(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    first = await open_manager("first", distillation_workers=1)
    first.start()
    extractor.replies["distill"] = [LESSON, "unreadable", RuntimeError("once"), RETURN, RETURN]
    for id in ("x", "y", "z"):
        await first.manager.report(EpisodeReport(make_request(id, step=3), guided=False))
    await first.finished()
    guide = await first.manager.guide("open the door", *WHERE)
    await first.manager.search_and_ask("open the door", *WHERE)
    await first.manager.collect(3)
    await first.manager.merge()  # a bank of one entry: nothing to ask
    await merged(first)

    extractor.gate.clear()
    assert guide.experience_id and guide.record_id
    used = {"experience_ids": (guide.experience_id,), "step": 4}
    working = EpisodeReport(make_request("working", **used), guided=True, record_ids=(guide.record_id,))
    waiting = EpisodeReport(make_request("waiting", success=False, **used), guided=True, record_ids=(guide.record_id,))
    for report in (working, waiting):
        await first.manager.report(report)
    await until(lambda: asyncio.sleep(0, len(extractor.prompts) == 5))  # the first of the two is with the extractor
    await first.manager.save(str(tmp_path / "snapshot"))
    saved = await first.manager.metrics()
    assert saved["queue/depth"] == 2 and saved["bank/size"] == 1 and saved["buffer/samples"] == 1

    second = await open_manager("second", distillation_workers=1)
    await second.manager.restore(str(tmp_path / "snapshot"))
    assert lasting(await second.manager.metrics()) == lasting(saved)
    assert second.bank.entries() == first.bank.entries()
    assert await second.manager.next_batch() == await first.manager.next_batch()
    await first.manager.close()

    await second.manager.report(working)  # a rollout that reports again counts no second time
    extractor.replies["distill"] = [LESSON, RETURN]
    extractor.gate.set()
    second.start()
    metrics = await second.finished()
    assert metrics["bank/size"] == 2 and metrics["operations/added"] == 2 and metrics["merge/passes"] == 1
    assert (await second.manager.collect(4))["extractor/samples"] == 1
    await second.manager.trained()
    batch = await second.manager.next_batch()
    assert batch is not None and batch.rewards == [0.0] and batch.records[0].id == guide.record_id


async def test_a_manager_without_history_survives_a_restart(open_manager: Open, tmp_path: Path) -> None:
    first, second = await open_manager("first"), await open_manager("second")
    await first.manager.save(str(tmp_path / "snapshot"))
    await second.manager.restore(str(tmp_path / "snapshot"))
    assert await second.manager.metrics() == await first.manager.metrics()


async def test_closing_in_the_middle_of_a_call_ends(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager()
    setup.start()
    extractor.gate.clear()
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    await until(lambda: asyncio.sleep(0, len(extractor.prompts) == 1))
    async with asyncio.timeout(5):
        await setup.manager.close()
    again = await open_manager()  # the folder is free again
    assert len(again.bank) == 0
