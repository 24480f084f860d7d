"""The merge in the background."""

import asyncio

from managed import WHERE, Extractor, MakeRequest, Open, answered, merged, until

from verl_comprl.extractor.config import MergeConfig
from verl_comprl.manager.messages import EpisodeReport


async def test_a_merge_pass_goes_through_the_bank_and_carries_its_results(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2))
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
    assert entry.text == "ab\nboth" and (entry.tasks, entry.environments) == (("fetch",), ("room",))
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
    setup = await open_manager(merge=MergeConfig(chunk=2))
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


async def test_tasks_are_merged_beside_one_another_but_no_more_than_allowed(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2, workers=2))
    setup.start()
    for task in ("a", "b", "c"):
        await setup.seed(f"{task} one", f"{task} two", call_id=task, task=task)
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1, 2]})
    extractor.gate.clear()
    await setup.manager.merge()
    await until(lambda: asyncio.sleep(0, len(extractor.prompts) == 2))
    await asyncio.sleep(0.02)
    assert len(extractor.prompts) == 2
    tasks = [{task for task in "abc" if f"{task} one" in prompt} for _, prompt in extractor.prompts]
    assert tasks == [{"a"}, {"b"}]  # never two tasks in one call
    extractor.gate.set()
    await merged(setup)
    assert len(extractor.prompts) == 3 and len(setup.bank) == 6
