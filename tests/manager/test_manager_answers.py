"""Answers in the middle of an episode, and the entries that they rested on."""

import asyncio

import pytest
from managed import LESSON, RETURN, WHERE, Extractor, MakeRequest, Open, Setup, answered

from verl_comprl.config.tree import SearchAndAskConfig
from verl_comprl.experience import TaskUsage
from verl_comprl.experience.schema import derive_id
from verl_comprl.manager.messages import MAX_CHARS, NOTHING_FOUND, UNAVAILABLE, Answer, EpisodeReport
from verl_comprl.platform import pauses


async def test_an_entry_that_answers_rested_on_is_counted_apart_and_listed_after_the_guide(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    guide, asked, other = await running.seed("open the door", "cross the lava", "something else entirely")
    answer = await running.manager.search_and_ask("cross the lava", *WHERE)
    assert (answer.experience_id, answer.experience_text) == (asked, "cross the lava\nabout cross the lava")
    assert answer.entry_record_id is None  # the entry's own record is not rewarded
    read = {
        "experience_ids": (guide, asked),
        "experience_texts": ("open the door\nabout open the door", answer.experience_text),
    }
    extractor.replies["distill"] = answered({"operation": "update", "ids": [2], "title": "lava", "content": "hop"})
    await running.manager.report(EpisodeReport(make_request("a", success=True, **read), guided=True))
    metrics = await running.finished()

    assert metrics["operations/updated"] == 1
    prompt = extractor.prompts[-1][1]
    assert "agent read:\n1. open the door\nabout open the door\n\n2. cross the lava\nabout cross the lava" in prompt
    assert "Other earlier experience:\n3. something else entirely" in prompt
    entries = {entry.title: entry for entry in running.bank.entries()}
    assert entries["lava"].parents == (asked,) and other == entries["something else entirely"].id
    assert entries["open the door"].usage == (TaskUsage(task="fetch", uses=1, successes=1),)

    # Asked again, before the episode is distilled.
    again = await running.manager.search_and_ask("lava", *WHERE)
    extractor.replies["distill"] = RETURN
    lava = str(again.experience_id)
    request = make_request("b", success=False, experience_ids=(guide, lava), experience_texts=("x", "y"))
    await running.manager.report(EpisodeReport(request, guided=True))
    entry = running.bank.get(lava)
    assert entry is not None and entry.usage == (TaskUsage(task="fetch", asked=1),)
    assert entry.posterior_success == 1 / 2.5


async def test_the_entry_behind_an_answer_is_rewarded_if_that_is_wanted(open_manager: Open) -> None:
    setup = await open_manager(search_and_ask=SearchAndAskConfig(reward_entry=True))
    setup.start()
    await setup.seed("open the door", call_id="the call")
    answer = await setup.manager.search_and_ask("open the door", *WHERE)
    assert answer.entry_record_id == "the call" != answer.record_id


async def test_an_entry_that_may_be_longer_than_a_prompt_answers_by_its_beginning(
    open_manager: Open, extractor: Extractor
) -> None:
    earlier = await open_manager(bank={"max_title_chars": 50_000})
    await earlier.seed("lava " * 9_000)
    await earlier.manager.close()
    setup = await open_manager()
    setup.start()
    assert (await setup.manager.search_and_ask("lava", *WHERE)).status == "answered"
    ((_, prompt),) = extractor.prompts
    assert 1_000 < prompt.count("lava") <= MAX_CHARS / len("lava ") + 1


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


async def test_a_malformed_answer_is_nothing_found_and_costs_its_record(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"batch_size": 4})
    setup.start()
    await setup.seed("open the door")
    answers = [await setup.manager.search_and_ask("open the door", *WHERE) for _ in range(3)]
    extractor.replies["answer"] = "no tags"
    assert await setup.manager.search_and_ask("open the door", *WHERE) == Answer("malformed", NOTHING_FOUND)
    used = tuple(str(answer.record_id) for answer in answers)
    await setup.manager.report(EpisodeReport(make_request("a"), guided=True, record_ids=used))
    assert (await setup.manager.collect(1))["extractor/samples"] == 3
    batch = await setup.manager.next_batch()
    assert batch is not None and {record.kind for record in batch.records} == {"answer"}
    assert batch.rewards == [1.0, 1.0, 1.0, -1.0] and batch.advantages == [0.0, 0.0, 0.0, -2.0]


async def test_answers_fill_at_most_half_of_a_batch(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"batch_size": 4})
    setup.start()
    extractor.replies["distill"] = [LESSON, LESSON, *[RETURN] * 3]
    for id in ("x", "y"):
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    await setup.finished()
    answers = [await setup.manager.search_and_ask("open the door", *WHERE) for _ in range(3)]
    used = tuple(str(answer.record_id) for answer in answers)
    await setup.manager.report(EpisodeReport(make_request("a"), guided=True, record_ids=used))
    await setup.manager.collect(1)
    assert await setup.manager.next_batch() is None
    written = tuple(derive_id("distill", id) for id in ("x", "y"))
    await setup.manager.report(EpisodeReport(make_request("b"), guided=True, record_ids=written))
    await setup.manager.collect(2)
    batch = await setup.manager.next_batch()  # the three answers are older
    assert batch is not None and sorted(record.kind for record in batch.records) == ["answer"] * 2 + ["distill"] * 2


async def test_an_answer_is_not_late_because_the_servers_paused(
    open_manager: Open, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the actor, which may be the extractor."""
    clock = pauses.PausableClock()
    monkeypatch.setattr(pauses, "_clock", clock)
    setup = await open_manager(search_and_ask=SearchAndAskConfig(timeout=0.5))
    setup.start()
    await setup.seed("open the door")
    extractor.gate.clear()
    clock.pause(True)
    asking = asyncio.create_task(setup.manager.search_and_ask("open the door", *WHERE))
    await asyncio.sleep(0.8)
    extractor.gate.set()
    assert (await asking).status == "answered"


async def test_a_late_answer_is_given_up(open_manager: Open, extractor: Extractor) -> None:
    setup = await open_manager(search_and_ask=SearchAndAskConfig(timeout=0.05))
    setup.start()
    await setup.seed("open the door")
    extractor.gate.clear()
    async with asyncio.timeout(20):
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
