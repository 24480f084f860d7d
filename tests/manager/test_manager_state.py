"""Snapshots of a running manager."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from managed import LESSON, RETURN, WHERE, Extractor, MakeRequest, Open, Setup, answered, merged
from waiting import until

from verl_comprl.experience.schema import derive_id
from verl_comprl.extractor.config import MergeConfig
from verl_comprl.manager.messages import EpisodeReport

# The bank counts retrievals and latencies from its opening.
_SINCE_OPENING = (
    "queries_embedded",
    "queries_hits",
    "queries_shared",
    "retrievals",
    "found",
    "nothing",
    "degraded",
    "hit_rate",
    "latency_p50_ms",
    "latency_p95_ms",
    "counters_unwritten_seconds",
)


def lasting(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.removeprefix("bank/") not in _SINCE_OPENING}


def read_journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "bank.jsonl").read_text().splitlines()]


async def test_a_run_goes_on_where_its_snapshot_was_taken(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    settings = {"distillation_workers": 1, "batch_size": 4}
    first = await open_manager("first", extractor_settings=settings)
    first.start()
    extractor.replies["distill"] = [LESSON, "unreadable", RuntimeError("once"), RETURN, RETURN]
    for id in ("x", "y", "z"):
        await first.manager.report(EpisodeReport(make_request(id, step=3), guided=False))
    await first.finished()
    guide = await first.manager.guide("open the door", *WHERE)
    asked = [await first.manager.search_and_ask("open the door", *WHERE) for _ in range(2)]
    answers = tuple(str(answer.record_id) for answer in asked)
    await first.manager.collect(3)
    await first.manager.merge()  # a bank of one entry: nothing to ask
    await merged(first)

    extractor.gate.clear()
    assert guide.experience_id and guide.record_id
    used = {"experience_ids": (guide.experience_id,), "step": 4}
    working = EpisodeReport(make_request("working", **used), guided=True, record_ids=(guide.record_id, *answers))
    waiting = EpisodeReport(make_request("waiting", success=False, **used), guided=True, record_ids=(guide.record_id,))
    for report in (working, waiting):
        await first.manager.report(report)
    await until(lambda: len(extractor.prompts) == 6)  # the first of the two is with the extractor
    await first.manager.save(str(tmp_path / "snapshot"))
    saved = await first.manager.metrics()
    assert saved["queue/depth"] == 2 and saved["bank/size"] == 1 and saved["buffer/samples"] == 1

    second = await open_manager("second", extractor_settings=settings)
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
    assert (await second.manager.collect(4))["extractor/samples"] == 3
    batch = await second.manager.next_batch()
    # The guide's episodes succeeded and failed; the answers' episode succeeded; one answer could not be parsed.
    assert batch is not None
    rewards = dict(zip([record.id for record in batch.records], batch.rewards, strict=True))
    assert rewards == {guide.record_id: 0.0, **dict.fromkeys(answers, 1.0), batch.records[3].id: -1.0}
    assert batch.advantages == [0.0, 0.0, 0.0, -1.0]


async def test_a_merge_that_was_running_is_repeated_after_a_resume(
    open_manager: Open, extractor: Extractor, tmp_path: Path
) -> None:
    first = await open_manager("first")
    first.start()
    await first.seed("a", "b")
    extractor.gate.clear()
    assert await first.manager.merge()
    await until(lambda: len(extractor.prompts) == 1)
    await first.manager.save(str(tmp_path / "snapshot"))
    await first.manager.close()

    extractor.replies["merge"] = answered({"operation": "merge", "ids": [1, 2], "title": "ab", "content": "both"})
    extractor.gate.set()
    frozen = await open_manager("frozen", extractor_settings={"distill": False})
    await frozen.manager.restore(str(tmp_path / "snapshot"))
    frozen.start()  # as for an evaluation, which does not repeat it
    second = await open_manager("second")
    await second.manager.restore(str(tmp_path / "snapshot"))
    second.start()
    await merged(second)
    assert [entry.title for entry in second.bank.entries()] == ["ab"] and len(frozen.bank) == 2
    assert await second.manager.merge()  # the next one can be started
    await merged(second, passes=2)
    assert await frozen.manager.merge()  # a run without distillation may merge
    await merged(frozen)
    assert [entry.title for entry in frozen.bank.entries()] == ["ab"]


async def test_a_repeated_merge_trains_the_tokens_that_wrote_its_entries(
    open_manager: Open, extractor: Extractor, tmp_path: Path
) -> None:
    """The first chunk has the same prompt again if the pass before left it as it was; the answer is another one."""
    settings: Any = {"merge": MergeConfig(chunk=2), "extractor_settings": {"batch_size": 4}}
    first = await open_manager("first", **settings)
    first.start()
    await first.seed("a", "a a", "b", "b b")
    extractor.replies["merge"] = "unreadable"
    extractor.after[1] = extractor.gate.clear
    assert await first.manager.merge()
    await until(lambda: len(extractor.prompts) == 2)
    await first.manager.save(str(tmp_path / "snapshot"))
    await first.manager.close()

    both = answered({"operation": "merge", "ids": [1, 2], "title": "both", "content": "both"})
    extractor.replies["merge"] = [both, "unreadable"]
    extractor.gate.set()
    second = await open_manager("second", **settings)
    await second.manager.restore(str(tmp_path / "snapshot"))
    second.start()
    await merged(second)
    assert extractor.prompts[2] == extractor.prompts[0]
    (entry,) = [entry for entry in second.bank.entries() if entry.title == "both"]
    record = second.manager._buffer._records.get(entry.record_id)
    assert record is not None and "".join(map(chr, record.response_ids)) == both and not record.format_failure


async def test_a_repeated_distillation_keeps_no_record_of_what_it_did_not_write(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    """The manager was killed after the first answer was written to the bank and before queue and journal knew."""
    setup = await open_manager()
    setup.start()
    await setup.seed("first answer", call_id=derive_id("distill", "a"))
    extractor.replies["distill"] = LESSON
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    assert (await setup.finished())["buffer/records"] == 0
    assert [entry.title for entry in setup.bank.entries()] == ["first answer"]
    await setup.manager.report(EpisodeReport(make_request("b"), guided=False))
    assert (await setup.finished())["buffer/records"] == 1
    events = read_journal(tmp_path)
    assert {event["episode"]: (event["event"], event["entry"]) for event in events} == {
        entry.source_trajectory or "a": ("written", entry.id) for entry in setup.bank.entries()
    }


@pytest.mark.parametrize("answer", [RETURN, "unreadable"])
async def test_the_journal_knows_what_was_written_before_a_kill_whatever_the_second_answer_is(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path, answer: str
) -> None:
    setup = await open_manager()
    setup.start()
    await setup.seed("first answer", call_id=derive_id("distill", "a"))
    extractor.replies["distill"] = answer
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    assert (await setup.finished())["buffer/records"] == 0  # its rewards are those of the text in the bank
    (event,), (entry,) = read_journal(tmp_path), setup.bank.entries()
    assert (event["event"], event["episode"], event["entry"]) == ("written", "a", entry.id)


@pytest.mark.parametrize("answer", [RETURN, "unreadable", answered({"operation": "add", "title": "", "content": ""})])
async def test_the_journal_knows_an_episode_that_was_distilled_to_nothing(
    running: Setup, extractor: Extractor, make_request: MakeRequest, tmp_path: Path, answer: str
) -> None:
    """The records of calls are lost if the manager is killed; the episode must not look lost then."""
    extractor.replies["distill"] = answer
    await running.manager.report(EpisodeReport(make_request("a", step=3), guided=False))
    await running.finished()
    (event,) = read_journal(tmp_path)
    assert (event["event"], event["episode"], event["step"]) == ("nothing", "a", 3)
    assert event["call"] == derive_id("distill", "a")


async def test_the_journal_tells_an_entry_that_a_full_bank_lost_from_one_that_the_extractor_removed(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    """Also if the prompt of the call that took its place has listed it."""
    setup = await open_manager(bank={"capacity": 2}, extractor_settings={"list_nearest": 0})
    setup.start()
    oldest, _ = await setup.seed("pray", "jump")
    extractor.replies["distill"] = LESSON
    guided = {"experience_ids": (oldest,), "experience_texts": ("pray",)}
    await setup.manager.report(EpisodeReport(make_request("a", **guided), guided=True))
    await setup.finished()
    (event,) = [event for event in read_journal(tmp_path) if event["event"] == "removed"]
    assert (event["entry"], event["reason"]) == (oldest, "evicted")


async def test_a_merge_that_was_over_is_not_repeated(open_manager: Open, extractor: Extractor, tmp_path: Path) -> None:
    first, second = await open_manager("first"), await open_manager("second")
    first.start()
    await first.seed("a", "b")
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1, 2]})
    await first.manager.merge()
    await merged(first)
    await first.manager.save(str(tmp_path / "snapshot"))
    await second.manager.restore(str(tmp_path / "snapshot"))
    second.start()
    await asyncio.sleep(0.05)
    assert len(extractor.prompts) == 1


async def test_a_run_that_does_not_train_any_more_keeps_no_samples_of_the_one_before(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    """Nothing would take them, and each outcome of a text that was written then would add one."""
    first = await open_manager("first")
    first.start()
    extractor.replies["distill"] = LESSON
    await first.manager.report(EpisodeReport(make_request("a"), guided=False))
    await first.finished()
    (entry,) = first.bank.entries()
    await first.manager.save(str(tmp_path / "snapshot"))

    second = await open_manager("second", extractor_settings={"train": False})
    await second.manager.restore(str(tmp_path / "snapshot"))
    for id in ("b", "c"):
        used = (entry.record_id,)
        await second.manager.report(EpisodeReport(make_request(id), guided=True, record_ids=used))
        assert (await second.manager.collect(1))["extractor/samples"] == 0
    metrics = await second.manager.metrics()
    assert (metrics["buffer/records"], metrics["buffer/samples"], metrics["bank/size"]) == (0, 0, 1)


async def test_a_manager_without_history_survives_a_restart(open_manager: Open, tmp_path: Path) -> None:
    first, second = await open_manager("first"), await open_manager("second")
    await first.manager.save(str(tmp_path / "snapshot"))
    await second.manager.restore(str(tmp_path / "snapshot"))
    assert lasting(await second.manager.metrics()) == lasting(await first.manager.metrics())


async def test_closing_in_the_middle_of_a_call_ends(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager()
    setup.start()
    extractor.gate.clear()
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    await until(lambda: len(extractor.prompts) == 1)
    async with asyncio.timeout(20):
        await setup.manager.close()
    again = await open_manager()  # the folder is free again
    assert len(again.bank) == 0
