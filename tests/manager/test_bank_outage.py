"""A store or an embedder that is away: distillations wait for it, and none is given up, counted or asked for twice."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from managed import LESSON, Extractor, MakeRequest, Open, Setup, answered, merged
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)
from qdrant_double import QdrantDouble  # pyright: ignore[reportMissingImports]  (tests/experience)
from waiting import until

from verl_comprl.experience import EmbedderUnavailable, StoreError, StoreUnavailable
from verl_comprl.experience.store import folder
from verl_comprl.manager import availability
from verl_comprl.manager.messages import EpisodeReport


@pytest.fixture
def double() -> Iterator[QdrantDouble]:
    """To be named before ``open_manager``, so that it ends after it."""
    server = QdrantDouble().start()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(availability, "LONGEST_PAUSE", 0.05)


async def opened(open_manager: Open, double: QdrantDouble) -> Setup:
    """Return a manager with two workers, whose episodes have three attempts."""
    # Nothing but episodes writes to the bank: a write of its counters would fail too, and could rebuild it.
    patient = {"timeout_seconds": 60, "flush_seconds": 3600.0}
    setup = await open_manager(bank={"url": double.url, "collection": "c", "attempts": 1, **patient})
    setup.start()
    return setup


async def away_for(setup: Setup, seconds: float) -> dict[str, float]:
    """Return the metrics of a moment in which nobody asks the bank again, as happens after each pause."""
    metrics: dict[str, float] = {}

    async def long_enough() -> bool:
        metrics.update(await setup.manager.metrics())
        return metrics["bank/away_seconds"] >= seconds and metrics["bank/away"] == 1

    await until(long_enough)
    return metrics


def failures(metrics: dict[str, float]) -> dict[str, float]:
    lost = {name: metrics[f"queue/{name}"] for name in ("retried", "dead") if metrics[f"queue/{name}"]}
    return lost | {name: value for name, value in metrics.items() if name.startswith("failures/")}


async def test_an_outage_of_the_store_costs_no_attempt_and_no_second_answer(
    double: QdrantDouble,
    open_manager: Open,
    extractor: Extractor,
    make_request: MakeRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = await opened(open_manager, double)
    extractor.replies["distill"] = LESSON
    extractor.after = {1: double.stop}
    with caplog.at_level(logging.WARNING, "verl_comprl.manager"):
        for id in "abcdefgh":
            await setup.manager.report(EpisodeReport(make_request(id), guided=False))
        metrics = await away_for(setup, 0.5)  # ten pauses: an episode has three attempts
        assert (metrics["queue/depth"], failures(metrics)) == (8, {})
        assert len(extractor.prompts) <= 2  # of the episodes that the two workers have begun
        double.start()
        metrics = await setup.finished()
    assert (metrics["distillations/written"], metrics["bank/size"], metrics["bank/away"]) == (8, 8, 0)
    assert len(extractor.prompts) == 8 and failures(metrics) == {}
    (warning,) = ours(caplog)
    assert warning.getMessage().startswith(
        "the bank's store or embedder cannot be reached, and distillations wait; it is asked again and again: "
        f"experience bank c on {double.url}: "
    )


@pytest.mark.parametrize(
    ("status", "is_waited_for"), [(429, True), (503, True), (507, True), (400, False), (500, False)]
)
async def test_what_a_store_refuses_is_given_up_unless_it_takes_nothing(
    double: QdrantDouble,
    open_manager: Open,
    extractor: Extractor,
    make_request: MakeRequest,
    status: int,
    is_waited_for: bool,
) -> None:
    setup = await opened(open_manager, double)
    extractor.replies["distill"] = LESSON
    double.faults.only, double.faults.responses = "c.v1/points", [(status, {})] * 3
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    metrics = await setup.finished()
    assert not double.faults.responses
    if is_waited_for:
        assert (metrics["bank/size"], failures(metrics)) == (1, {})
    else:
        assert metrics["bank/size"] == 0
        assert failures(metrics) == {"retried": 2, "dead": 1, "failures/distill:StoreError": 3}


async def test_a_server_that_forgot_everything_costs_nothing(
    double: QdrantDouble, open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await opened(open_manager, double)
    extractor.replies["distill"] = LESSON
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    await setup.finished()
    double.empty()
    await setup.manager.save(str(tmp_path / "checkpoint"))
    double.empty()
    await setup.manager.report(EpisodeReport(make_request("b"), guided=False))
    metrics = await setup.finished()
    assert (metrics["bank/size"], metrics["bank/rebuilds"], failures(metrics)) == (2, 2, {})
    assert await setup.bank.verify() == []


async def test_a_full_disk_costs_no_attempt_and_no_second_answer(
    open_manager: Open,
    extractor: Extractor,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """With a bank in files; that a full one would end the process is tested in ``experience/store``."""
    setup, room = await open_manager(bank={"flush_seconds": 3600.0}), folder.ROOM
    setup.start()
    extractor.replies["distill"] = LESSON
    extractor.after = {1: lambda: monkeypatch.setattr(folder, "ROOM", 2**60)}
    with caplog.at_level(logging.WARNING, "verl_comprl.manager"):
        for id in "abcd":
            await setup.manager.report(EpisodeReport(make_request(id), guided=False))
        await away_for(setup, 0.5)  # ten pauses: an episode has three attempts
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await setup.manager.save(str(tmp_path / "checkpoint"))
        metrics = await away_for(setup, 0.5)
        assert (metrics["queue/depth"], failures(metrics)) == (4, {})
        monkeypatch.setattr(folder, "ROOM", room)
        metrics = await setup.finished()
    assert (metrics["distillations/written"], metrics["bank/size"], failures(metrics)) == (4, 4, {})
    assert len(extractor.prompts) == 4
    (warning,) = ours(caplog)
    assert "the disk is full: " in warning.getMessage() and "make room on it" in warning.getMessage()


async def test_the_next_outage_begins_with_a_short_pause_and_is_logged_whatever_the_last_one_ended_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def call() -> None:
        raise errors.pop(0)

    bank = availability.BankAvailability(flush=call)
    for _ in range(2):
        errors = [StoreUnavailable("no route"), StoreUnavailable("no route"), StoreError("refused")]
        with pytest.raises(StoreError, match="refused"):
            await bank.when_there(call)
    assert len(ours(caplog)) == 2


async def test_a_stop_during_an_outage_leaves_the_episodes_in_the_queue(
    open_manager: Open, extractor: Extractor, embedder: FakeEmbedder, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await open_manager()
    setup.start()
    extractor.replies["distill"] = LESSON
    extractor.after = {1: lambda: setattr(embedder, "failure", EmbedderUnavailable("no route"))}
    for id in "abc":
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    await away_for(setup, 0.2)
    assert await setup.manager.drain(0.05) is False
    async with asyncio.timeout(60):
        await setup.manager.save(str(tmp_path / "checkpoint"))
        await setup.manager.close()
    waiting = [json.loads(line) for line in (tmp_path / "checkpoint/queue.jsonl").read_text().splitlines()]
    assert [(line["request"]["id"], line["attempts"]) for line in waiting] == [("a", 0), ("b", 0), ("c", 0)]


async def test_a_merge_waits_for_an_embedder_that_is_away(
    open_manager: Open, extractor: Extractor, embedder: FakeEmbedder
) -> None:
    setup = await open_manager()
    setup.start()
    await setup.seed("open the door", "open the gate")
    extractor.replies["merge"] = answered({"operation": "merge", "ids": [1, 2], "title": "open", "content": "both"})
    embedder.failure = EmbedderUnavailable("no route")
    assert await setup.manager.merge()
    await away_for(setup, 0.2)
    embedder.failure = None
    await merged(setup)
    assert [entry.title for entry in setup.bank.entries()] == ["open"] and len(extractor.prompts) == 1
    assert failures(await setup.manager.metrics()) == {}
