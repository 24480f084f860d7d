"""An extractor that answers badly, late or not at all, and a store that fails."""

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from managed import LESSON, RETURN, WHERE, Extractor, MakeRequest, Open, Setup, answered
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)

from verl_comprl.config.tree import SearchAndAskConfig
from verl_comprl.experience.schema import derive_id
from verl_comprl.manager.messages import UNAVAILABLE, Answer, EpisodeReport, Guide


@pytest.mark.parametrize("reward", [-1.0, -0.25])
async def test_a_format_failure_changes_nothing_and_is_rewarded_for_that(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, reward: float
) -> None:
    settings = {"format_failure_reward": reward, "batch_size": 4, "distillation_workers": 1}
    setup = await open_manager(extractor_settings=settings)
    setup.start()
    extractor.replies["distill"] = [LESSON, LESSON, LESSON, "I would rather not.", RETURN]
    for id in ("a", "b", "c", "d"):
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    metrics = await setup.finished()
    assert (metrics["parse_failures/no_answer"], metrics["bank/size"]) == (1, 3)
    assert await setup.manager.next_batch() is None
    used = tuple(derive_id("distill", id) for id in ("a", "b", "c"))
    await setup.manager.report(EpisodeReport(make_request("e", success=False), guided=True, record_ids=used))
    assert (await setup.manager.collect(1))["extractor/samples"] == 3
    batch = await setup.manager.next_batch()
    assert batch is not None and {record.id for record in batch.records[:3]} == set(used)
    assert batch.records[3].id == derive_id("distill", "d")
    # All outcomes are failed episodes: the unreadable answer is worse than they all the same.
    assert batch.rewards == [-1.0, -1.0, -1.0, reward] and batch.advantages == [0.0, 0.0, 0.0, reward]


async def test_distilled_episodes_are_counted_by_result(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(bank={"dedup_similarity": 0.95}, extractor_settings={"distillation_workers": 1})
    setup.start()
    both = answered({"operation": "add", "title": "open the lid", "content": "c"}, {"operation": "return"})
    near_copy = LESSON  # which the bank does not take
    extractor.replies["distill"] = [LESSON, both, RETURN, near_copy, "?", RETURN]
    for id in "abcdef":
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    metrics = await setup.finished()
    assert {name: metrics[f"distillations/{name}"] for name in ("written", "return", "unreadable")} == {
        "written": 2,
        "return": 3,
        "unreadable": 1,
    }
    assert metrics["distillations/return_share"] == 0.6  # of the five that could be read


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


async def test_a_failing_extractor_is_counted_logged_once_and_asked_again(
    running: Setup, extractor: Extractor, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    extractor.replies["distill"] = [RuntimeError("server is gone"), RuntimeError("still gone"), LESSON, RETURN, RETURN]
    with caplog.at_level(logging.WARNING, "verl_comprl.manager.manager"):
        for id in ("a", "b", "c"):
            await running.manager.report(EpisodeReport(make_request(id), guided=False))
        metrics = await running.finished()
    assert (metrics["failures/distill:RuntimeError"], metrics["queue/retried"]) == (2, 2)
    assert (metrics["bank/size"], metrics["queue/depth"], metrics["queue/dead"]) == (1, 0, 0)
    assert [record.getMessage() for record in ours(caplog)] == [
        "distill failed (further ones are counted only): server is gone"
    ]


async def test_an_episode_that_always_fails_becomes_a_dead_letter_and_the_others_go_on(
    running: Setup, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    extractor.failing = "poison"
    for goal in ("poison", "fine"):
        await running.manager.report(EpisodeReport(make_request(goal, goal=goal), guided=False))
    metrics = await running.finished()
    assert (metrics["queue/dead"], metrics["queue/retried"], metrics["failures/distill:RuntimeError"]) == (1, 2, 3)
    letter = json.loads((tmp_path / "bank-queue/dead_letters.jsonl").read_text())
    assert (letter["reason"], letter["attempts"], letter["request"]["id"]) == ("RuntimeError: poison", 3, "poison")
    assert metrics["buffer/records"] == 1


async def test_an_episode_is_distilled_again_if_the_bank_could_not_take_it(
    running: Setup, extractor: Extractor, embedder: FakeEmbedder, make_request: MakeRequest
) -> None:
    """The record that is kept must be the call whose text is in the bank."""

    class Failure(Exception):
        pass

    second = answered({"operation": "add", "title": "second", "content": "words"})
    extractor.replies["distill"] = [LESSON, second]
    embedder.failure = Failure()

    def recovered() -> None:
        embedder.failure = None

    extractor.after = {2: recovered}
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    metrics = await running.finished()
    assert metrics["failures/distill:Failure"] == 1
    (entry,) = running.bank.entries()
    record = running.manager._buffer._records.get(entry.record_id)
    assert entry.title == "second" and record is not None
    assert "".join(map(chr, record.response_ids)) == second


def slow_embedding(embedder: FakeEmbedder) -> tuple[asyncio.Event, asyncio.Event]:
    """Let it embed documents only while the first event is set; the second is set when it is asked to."""
    gate, waiting = asyncio.Event(), asyncio.Event()
    embed = embedder.embed_documents
    gate.set()

    async def slowly(texts: Any) -> Any:
        waiting.set()
        await gate.wait()
        return await embed(texts)

    embedder.embed_documents = slowly
    return gate, waiting


@pytest.mark.parametrize("list_nearest", [0, 3])  # 0: waits for the new text's vector, 3: for that of goal and outcome
async def test_a_slow_embedding_holds_up_nobody_else(
    open_manager: Open,
    extractor: Extractor,
    embedder: FakeEmbedder,
    make_request: MakeRequest,
    list_nearest: int,
    tmp_path: Path,
) -> None:
    gate, waiting = slow_embedding(embedder)
    running = await open_manager(extractor_settings={"list_nearest": list_nearest})
    running.start()
    await running.seed("open the door")
    assert (await running.manager.guide("open the door", *WHERE)).status == "found"  # now its vector is known
    gate.clear()
    waiting.clear()
    extractor.replies["distill"] = LESSON
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    async with asyncio.timeout(20):
        await waiting.wait()
        assert (await running.manager.search_and_ask("open the door", *WHERE)).status == "answered"
        await running.manager.report(EpisodeReport(make_request("b"), guided=True))
        await running.manager.collect(1)
        await running.manager.save(str(tmp_path / "saved"))
    assert len(running.bank) == 1
    gate.set()
    await running.finished()
    assert len(running.bank) == 3


async def test_a_merge_whose_text_is_embedded_slowly_holds_up_no_checkpoint(
    open_manager: Open, extractor: Extractor, embedder: FakeEmbedder, tmp_path: Path
) -> None:
    gate, waiting = slow_embedding(embedder)
    running = await open_manager()
    running.start()
    await running.seed("open the door", "open the lid")
    gate.clear()
    waiting.clear()
    extractor.replies["merge"] = answered({"operation": "merge", "ids": [1, 2], "title": "open", "content": "both"})
    assert await running.manager.merge()
    async with asyncio.timeout(20):
        await waiting.wait()
        await running.manager.save(str(tmp_path / "saved"))
        assert len(running.bank) == 2
        gate.set()
        while len(running.bank) > 1:
            await asyncio.sleep(0.01)


async def test_drain_gives_up_after_its_timeout(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.gate.clear()
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    assert not await running.manager.drain(0.02)
    assert (await running.manager.metrics())["queue/depth"] == 1
    extractor.gate.set()
    assert await running.manager.drain(20)


async def test_a_slow_extractor_does_not_hold_up_retrieval(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    await running.seed("open the door")
    extractor.gate.clear()
    for number in range(4):
        await running.manager.report(EpisodeReport(make_request(str(number)), guided=False))
    await running.manager.merge()
    async with asyncio.timeout(20):
        assert (await running.manager.guide("open the door", *WHERE)).status == "found"
        await running.manager.collect(1)


async def test_a_failing_store_is_a_degraded_answer(running: Setup, embedder: FakeEmbedder) -> None:
    await running.seed("open the door")
    embedder.failure = RuntimeError("out of memory")
    assert await running.manager.guide("where?", *WHERE) == Guide("degraded")
    assert await running.manager.search_and_ask("where?", *WHERE) == Answer("degraded", UNAVAILABLE)
    metrics = await running.manager.metrics()
    assert (metrics["guides/degraded"], metrics["answers/degraded"]) == (1, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
async def test_vectors_that_are_no_vectors_reach_no_entry_and_no_query(
    running: Setup, extractor: Extractor, embedder: FakeEmbedder, make_request: MakeRequest, value: float
) -> None:
    """Of the embedder, for new entries and for queries: each costs its own distillation, or its own guide."""
    await running.seed("open the door")
    before, vector = running.bank.entries(), embedder._vector
    embedder._vector = lambda text: np.full(64, value, np.float32) if "cursed" in text else vector(text)
    cursed = answered({"operation": "add", "title": "cursed", "content": "words"})
    extractor.replies["distill"] = lambda prompt: cursed if "curse" in prompt else LESSON
    await running.manager.report(EpisodeReport(make_request("a", goal="curse"), guided=False))
    metrics = await running.finished()
    assert (metrics["failures/distill:StoreError"], metrics["queue/retried"], metrics["queue/dead"]) == (3, 2, 1)
    assert running.bank.entries() == before and await running.bank.verify() == []
    guides = [await running.manager.guide(query, *WHERE) for query in ("a cursed door", "open the door")]
    assert [guide.status for guide in guides] == ["degraded", "found"]
    await running.manager.report(EpisodeReport(make_request("b"), guided=False))
    metrics = await running.finished()
    assert (metrics["guides/degraded"], metrics["distillations/written"]) == (1, 1)


async def test_an_embedder_that_hangs_costs_answers_and_no_step(
    open_manager: Open, embedder: FakeEmbedder, make_request: MakeRequest
) -> None:
    """A guide is waited for longer (``guides.RETRIEVAL_SECONDS``)."""
    setup = await open_manager(search_and_ask=SearchAndAskConfig(timeout=0.1))
    setup.start()
    await setup.seed("open the door")
    goes_on, embed = asyncio.Event(), embedder.embed_documents

    async def hang(texts: Any) -> Any:
        await goes_on.wait()
        return await embed(texts)

    embedder.embed_documents = hang
    async with asyncio.timeout(20):
        guide = asyncio.create_task(setup.manager.guide("where is it?", *WHERE))
        assert (await setup.manager.search_and_ask("where is the key?", *WHERE)).status == "failed"
        assert await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
        metrics = await setup.manager.collect(1)
    assert metrics["answers/failed"] == metrics["failures/search_and_ask:TimeoutError"] == 1
    assert not guide.done()
    goes_on.set()
    assert (await guide).status == "found"


@pytest.mark.parametrize("fault", ["full disk", "surrogate"])
async def test_a_journal_that_cannot_be_written_leaves_no_episode_half_reported(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path, fault: str
) -> None:
    """Its outcome was credited then, but nobody distilled it: neither queue nor dead letters had it."""
    if fault == "full disk":
        (tmp_path / "bank.jsonl").symlink_to("/dev/full")
    setup = await open_manager()
    (entry,) = await setup.seed("door")
    goal = "open \ud800" if fault == "surrogate" else "open"
    request = make_request("step_1", goal=goal, experience_ids=(entry,), experience_texts=("door",))
    assert await setup.manager.report(EpisodeReport(request, guided=True))
    assert await setup.manager.report(EpisodeReport(request, guided=True))  # as if the answer had been lost
    used = setup.bank.get(entry)
    assert used and used.uses == 1
    extractor.replies["distill"] = LESSON
    setup.start()
    metrics = await setup.finished()
    assert metrics["distillations/written"] == 1 and "failures/distill:OSError" not in metrics
    assert metrics["record/events_lost"] == (2 if fault == "full disk" else 0)


async def test_an_episode_that_the_queue_cannot_take_counts_when_it_is_reported_again(
    open_manager: Open, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await open_manager(extractor_settings={"batch_size": 4})
    (entry,) = await setup.seed("open the door")
    used = {"experience_ids": (entry,), "experience_texts": ("open the door",)}
    episode = EpisodeReport(make_request("a", **used), guided=True, record_ids=("record",))

    def fail(_: Any) -> None:
        raise RuntimeError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(setup.manager._queue, "put", fail)
        with pytest.raises(RuntimeError, match="no room"):
            await setup.manager.report(episode)
    for _ in range(2):
        assert await setup.manager.report(episode)
    (kept,) = setup.bank.entries()
    assert (kept.uses, len(setup.manager._queue)) == (1, 1)
