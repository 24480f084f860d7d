"""Record of the extractor's calls: what was asked, what became of it, and what it was rewarded and trained for."""

import asyncio
import json
from pathlib import Path
from typing import Any

import run_folder_page
from managed import LESSON, RETURN, WHERE, Extractor, MakeRequest, Open, Setup, answered, merged

from verl_comprl.experience.schema import derive_id
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.record.lines import decode
from verl_comprl.record.step_files import StepFiles


async def recorded(setup: Setup, tmp_path: Path) -> dict[int, list[dict[str, Any]]]:
    await asyncio.to_thread(setup.manager._call_log.close, 99)
    files = StepFiles(tmp_path / "bank-calls")
    return {step: list(decode(files.read(step))) for step in files.steps()}


def bank_events(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "bank.jsonl").read_text().splitlines()]


async def test_a_distillation_from_its_prompt_to_its_training(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await open_manager(extractor_settings={"list_nearest": 1, "batch_size": 2})
    setup.start()
    manager = setup.manager
    (old,) = await setup.seed("the door")
    update = {"operation": "update", "ids": [1], "title": "a door", "content": "open it"}
    add = {"operation": "add", "title": "keys", "content": "take them"}
    wrong = {"operation": "update", "ids": [7], "title": "x", "content": "y"}
    extractor.replies["distill"] = [answered(update, add, wrong), RETURN, "<answer>nothing</answer>", LESSON]
    for id in ("a", "d"):
        await manager.report(EpisodeReport(make_request(id, step=1), guided=False))
        await setup.finished()
    await manager.collect(1)

    made = derive_id("distill", "a")
    use = make_request("b", success=True, step=2)
    await manager.report(EpisodeReport(use, guided=True, record_ids=(made, derive_id("distill", "d"))))
    await setup.finished()
    await manager.collect(2)
    assert (await manager.next_batch(4)) is not None
    await manager.trained()
    await manager.save(str(tmp_path / "checkpoint"))

    await manager.report(EpisodeReport(make_request("c", step=3), guided=False))
    await setup.finished()
    steps = await recorded(setup, tmp_path)
    # What a checkpoint does not hold is in the file of a later step, which a resume drops.
    assert [(step, [event["event"] for event in events]) for step, events in steps.items()] == [
        (1, ["call", "call"]),
        (2, ["use", "use", "call", "trained", "trained"]),
        (99, ["call"]),
    ]
    for event in (event for events in steps.values() for event in events):
        assert event.keys() == run_folder_page.call_event(event["event"])
    events = bank_events(tmp_path)
    assert {event["event"] for event in events} >= {"written", "nothing", "removed"}
    assert all(event.keys() == run_folder_page.bank_event(event["event"]) for event in events)
    call, _ = steps[1]
    entries = {entry.title: entry.id for entry in setup.bank.entries()}
    assert call["call"] == made and call["kind"] == "distill" and call["episode"] == "a" and call["step"] == 1
    assert call["answer"] == answered(update, add, wrong)
    assert [message["content"] in extractor.prompts[0][1] for message in call["messages"]] == [True] * len(
        call["messages"]
    )
    assert call["format_ok"] and [error["kind"] for error in call["errors"]] == ["bad_index"]
    assert call["operations"] == [update, add]
    assert call["tokens"].keys() == run_folder_page.within(run_folder_page.CALL, "tokens")
    assert call["errors"][0].keys() == run_folder_page.within(run_folder_page.CALL, "errors")
    assert (call["listed"], call["removed"]) == ([old], [old])
    assert call["entries"] == [entries["a door"], entries["keys"]]
    assert call["tokens"]["response"] == len(call["answer"]) and call["reward"] is None

    rewarded, _, unreadable, *both = steps[2]
    assert rewarded == {
        "event": "use",
        "call": made,
        "step": 2,
        "episode": "b",
        "success": True,
        "judged": 0.0,
        "reward": 1.0,
    }
    assert (unreadable["format_ok"], unreadable["reward"], unreadable["entries"]) == (False, -1.0, [])
    (trained,) = (event for event in both if event["call"] == made)
    expected = {"event": "trained", "call": made, "step": 2, "update": 5, "reward": 1.0, "weight": 1.0}
    assert {name: trained[name] for name in expected} == expected


async def test_answers_to_questions(running: Setup, extractor: Extractor, tmp_path: Path) -> None:
    (entry,) = await running.seed("open the door")
    extractor.replies["answer"] = ["<answer>try left</answer>", "no tags", "<answer>in an evaluation</answer>"]
    answer = await running.manager.search_and_ask("which way?", *WHERE)
    await running.manager.search_and_ask("and then?", *WHERE)
    await running.manager.search_and_ask("which way?", *WHERE, read_only=True)
    steps = await recorded(running, tmp_path)
    good, bad, evaluation = steps[99]
    assert (good["call"], good["kind"], good["query"], good["entry"], good["text"]) == (
        answer.record_id,
        "answer",
        "which way?",
        entry,
        "try left",
    )
    assert (bad["format_ok"], bad["text"], bad["reward"]) == (False, None, -1.0)
    assert evaluation["text"] == "in an evaluation"


async def test_a_merge(running: Setup, extractor: Extractor, tmp_path: Path) -> None:
    ids = await running.seed("one", "two", "three")
    merge = {"operation": "merge", "ids": [1, 2], "title": "both", "content": "together"}
    extractor.replies["merge"] = answered(merge, {"operation": "discard", "ids": [3]})
    await running.manager.collect(4)
    await running.manager.merge()
    await merged(running)
    ((step, (call,)),) = (await recorded(running, tmp_path)).items()
    (left,) = running.bank.entries()
    assert (step, call["step"]) == (99, 4), (
        "in the file of the step that is closed after it, with the step of its entry"
    )
    assert (call["kind"], call["entries"], sorted(call["removed"])) == ("merge", [left.id], sorted(ids))
    assert sorted(call["listed"]) == sorted(ids) and call["episode"] is None
    events = bank_events(tmp_path)
    assert {event["event"] for event in events} >= {"merged", "removed"}
    assert all(event.keys() == run_folder_page.bank_event(event["event"]) for event in events)
    assert {tuple(event["tasks"]) for event in events if event["event"] in ("written", "merged")} == {left.tasks}
    assert {event["step"] for event in events if event["event"] in ("merged", "removed")} == {left.created_step} == {4}
    reasons = {event["entry"]: event["reason"] for event in events if event["event"] == "removed"}
    parents = set(left.parents)
    assert reasons == {id: "replaced" if id in parents else "discarded" for id in ids} and len(parents) == 2


async def test_relative_rewards_are_those_that_are_given(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await open_manager(extractor_settings={"utility": "relative"})
    setup.start()
    manager = setup.manager
    await manager.report(EpisodeReport(make_request("p_0", success=True), guided=True, record_ids=("entry",)))
    await manager.report(EpisodeReport(make_request("p_1", success=False), guided=False))
    await setup.finished()
    await manager.collect(1)
    events = [event for events in (await recorded(setup, tmp_path)).values() for event in events]
    (use,) = [event for event in events if event["event"] == "use"]
    assert (use["episode"], use["reward"]) == ("p_0", 2.0)  # 1 − (−1): the free half failed


async def test_a_disk_that_cannot_be_written_costs_the_record_only(
    running: Setup, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    (tmp_path / "bank-calls").write_text("a file is in the way")
    extractor.replies["distill"] = LESSON
    await running.manager.report(EpisodeReport(make_request("a"), guided=False))
    await running.finished()
    await running.manager.collect(1)
    await asyncio.to_thread(running.manager._call_log.close, 1)
    metrics = await running.manager.metrics()
    assert metrics["record/calls_lost"] == 1 and len(running.bank.entries()) == 1
