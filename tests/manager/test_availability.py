"""An extractor that is away for an update, or whose server has died: rollouts do not wait, the background does."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from managed import LESSON, WHERE, Extractor, MakeRequest, Open, Setup, answered, merged
from waiting import until

from verl_comprl.manager.availability import ExtractorGone, ExtractorUnreachable
from verl_comprl.manager.messages import UNAVAILABLE, Answer, EpisodeReport

GONE = Answer("unavailable", UNAVAILABLE)


def at_once(asking: Coroutine[Any, Any, Answer]) -> Answer:
    """Return an answer for which nothing is waited, not even for another turn of the event loop."""
    try:
        asking.send(None)
    except StopIteration as ended:
        return ended.value
    asking.close()
    raise AssertionError("the question waits")


async def test_questions_are_answered_at_once_and_nothing_is_recorded(running: Setup, extractor: Extractor) -> None:
    await running.seed("open the door")
    running.manager.availability.away()
    assert [at_once(running.manager.search_and_ask("open the door", *WHERE)) for _ in range(20)] == [GONE] * 20
    metrics = await running.manager.metrics()
    assert metrics["answers/unavailable"] == 20 and metrics["buffer/records"] == 0
    assert not any(name.startswith("failures/") for name in metrics)
    assert extractor.prompts == []
    assert (await running.manager.guide("open the door", *WHERE)).status == "found"  # needs the bank only

    running.manager.availability.back()
    assert (await running.manager.search_and_ask("open the door", *WHERE)).status == "answered"


async def test_a_question_that_is_being_answered_when_it_goes_away_does_not_wait(
    running: Setup, extractor: Extractor
) -> None:
    await running.seed("open the door")
    extractor.gate.clear()
    asking = [asyncio.create_task(running.manager.search_and_ask("open the door", *WHERE)) for _ in range(3)]

    async def asked() -> bool:
        return len(extractor.prompts) == 3

    await until(asked)
    running.manager.availability.away()
    async with asyncio.timeout(20):
        assert await asyncio.gather(*asking) == [GONE] * 3
    assert (await running.manager.metrics())["buffer/records"] == 0


async def test_an_evaluation_gets_no_answer_either_and_is_not_counted(running: Setup) -> None:
    await running.seed("open the door")
    running.manager.availability.away()
    assert await running.manager.search_and_ask("open the door", *WHERE, read_only=True) == GONE
    assert "answers/unavailable" not in await running.manager.metrics()


async def test_distillation_waits_and_no_attempt_is_counted(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.replies["distill"] = LESSON
    running.manager.availability.away()
    for id in "abcde":
        await running.manager.report(EpisodeReport(make_request(id), guided=False))
    await running.manager.collect(1)
    assert not await running.manager.drain(0.1)
    metrics = await running.manager.metrics()
    assert (extractor.prompts, metrics["queue/depth"], metrics["extractor/away"]) == ([], 5, 1)
    assert metrics["extractor/away_seconds"] >= 0.1

    running.manager.availability.back()
    metrics = await running.finished()
    assert (metrics["queue/retried"], metrics["queue/dead"], metrics["distillations/written"]) == (0, 0, 5)
    assert metrics["extractor/away"] == 0
    assert not any(name.startswith("failures/") for name in metrics)


async def test_a_server_that_dies_during_a_distillation_costs_no_attempt_and_makes_questions_fail_at_once(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    await running.seed("open the door")
    extractor.replies["distill"] = [ExtractorGone("killed"), LESSON]
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))

    async def noticed() -> bool:
        return (await running.manager.metrics())["extractor/away"] == 1

    await until(noticed)
    assert await running.manager.search_and_ask("open the door", *WHERE) == GONE
    running.manager.availability.back()
    metrics = await running.finished()
    assert (metrics["queue/retried"], metrics["distillations/written"], metrics["bank/size"]) == (0, 1, 2)


async def test_a_server_that_dies_while_it_answers_a_question_makes_it_unavailable(
    running: Setup, extractor: Extractor
) -> None:
    await running.seed("open the door")
    extractor.replies["answer"] = ExtractorGone("killed")
    async with asyncio.timeout(20):
        assert await running.manager.search_and_ask("open the door", *WHERE) == GONE
    assert (await running.manager.metrics())["extractor/away"] == 1


async def test_an_endpoint_that_cannot_be_reached_is_asked_again_after_growing_pauses_and_no_attempt_is_counted(
    running: Setup,
    extractor: Extractor,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await running.seed("open the door")
    availability, loop = running.manager.availability, asyncio.get_running_loop()
    pauses, call_later = list[float](), loop.call_later

    def held(delay: float, call: Callable[..., object], *arguments: Any, **context: Any) -> Any:
        """Pauses end when the test says so."""
        return pauses.append(delay) if call == availability.back else call_later(delay, call, *arguments, **context)

    monkeypatch.setattr(loop, "call_later", held)
    extractor.replies["distill"] = [*[ExtractorUnreachable("no route")] * 2, LESSON]
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    for expected in ([5.0], [5.0, 10.0]):
        await until(lambda expected=expected: pauses == expected)
        assert await running.manager.search_and_ask("open the door", *WHERE) == GONE
        assert (await running.manager.metrics())["extractor/away"] == 1
        availability.back()
    metrics = await running.finished()
    assert (metrics["queue/retried"], metrics["queue/dead"], metrics["distillations/written"]) == (0, 0, 1)
    assert availability._pause == 5.0  # of the next outage
    assert [record.getMessage() for record in caplog.records if "takes no requests" in record.getMessage()] == [
        "the extractor's endpoint takes no requests; it is asked again and again: no route"
    ]
    assert (await running.manager.search_and_ask("open the door", *WHERE)).status == "answered"


async def test_a_merge_waits_and_the_next_one_is_not_started_meanwhile(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager()
    setup.start()
    await setup.seed("open the door", "open the gate")
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1, 2]})
    setup.manager.availability.away()
    assert await setup.manager.merge()
    await asyncio.sleep(0.05)
    assert extractor.prompts == [] and not await setup.manager.merge()
    setup.manager.availability.back()
    await merged(setup)
    assert len(extractor.prompts) == 1
    assert not any(name.startswith("failures/") for name in await setup.manager.metrics())


async def test_the_end_of_a_run_does_not_wait_for_a_server_that_has_died(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.replies["distill"] = [ExtractorGone("killed"), LESSON]
    extractor.gate.clear()
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    draining = asyncio.create_task(running.manager.drain(60))
    await asyncio.sleep(0.02)
    assert not draining.done()
    extractor.gate.set()
    async with asyncio.timeout(20):
        assert await draining is False
        assert await running.manager.drain(60) is False
    running.manager.availability.back()
    assert await running.manager.drain(20) is True


async def test_the_end_of_a_run_waits_for_an_extractor_that_is_away_for_an_update(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    running.manager.availability.away()
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    draining = asyncio.create_task(running.manager.drain(20))
    await asyncio.sleep(0.02)
    running.manager.availability.back()
    assert await draining is True
