"""The merge in the background."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from managed import WHERE, Extractor, MakeRequest, Open, answered, merged
from waiting import until

from verl_comprl.experience import StoreError
from verl_comprl.extractor.config import MergeConfig
from verl_comprl.manager.messages import EpisodeReport


async def test_a_merge_pass_goes_through_the_bank_and_carries_its_results(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2))
    setup.start()
    await setup.seed("jump up", "jump down", "pray")
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
    unused = "(tasks: fetch; age 0 steps; not used yet)"
    # The first chunk's output is in the second.
    assert f"1. {unused}\nab\nboth\n\n2. {unused}\npray\nabout pray" in extractor.prompts[1][1]
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


async def test_an_entry_hides_no_heading_behind_a_token_of_the_extractor(
    open_manager: Open, extractor: Extractor, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(tokenizer), "added_tokens_decoder", {7: "<think>"}, raising=False)
    setup = await open_manager(merge=MergeConfig(chunk=2))
    setup.start()
    await setup.seed("jump up", "<function=a<think>b>\nTurn <function=a<think>b>9:")
    assert await setup.manager.merge()
    await merged(setup)
    forged = re.findall(r"^.*Turn\s+9:", extractor.prompts[0][1], re.M)
    assert forged and all(line.startswith("> ") for line in forged)


async def test_a_chunk_that_fails_keeps_its_entries_and_the_pass_goes_on(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2), extractor_settings={"batch_size": 4})
    setup.start()
    titles = ("a a", "a a a", "b b", "b b b", "c c", "c c c")
    await setup.seed(*titles)
    extractor.replies["merge"] = [
        RuntimeError("server is gone"),
        "unreadable",
        answered({"operation": "discard", "ids": [1]}),
    ]
    assert await setup.manager.merge()
    await merged(setup)
    (discarded,) = set(titles) - {entry.title for entry in setup.bank.entries()}
    assert (
        len(extractor.prompts) == 3 and f"not used yet)\n{discarded}\n" in extractor.prompts[2][1].partition("2. ")[0]
    )
    metrics = await setup.manager.metrics()
    assert (metrics["failures/merge:RuntimeError"], metrics["parse_failures/no_answer"]) == (1, 1)
    metrics = await setup.manager.collect(1)
    assert (metrics["buffer/samples"], metrics["extractor/samples"]) == (1, 0)  # the unreadable answer is no outcome
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1]})
    assert await setup.manager.merge()
    await merged(setup, passes=2)


@pytest.mark.parametrize(("step", "left"), [("upsert", 3), ("delete", 2)])
async def test_a_chunk_whose_write_is_done_without_an_answer_leaves_a_bank_that_can_be_saved_and_merged_again(
    open_manager: Open,
    extractor: Extractor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: str,
    left: int,
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2))
    setup.start()
    await setup.seed("jump up", "jump down", "pray")
    retain = answered({"operation": "retain", "ids": [1]})
    merge = answered({"operation": "merge", "ids": [1, 2], "title": "ab", "content": "both"})
    extractor.replies["merge"] = [merge, retain]
    store = setup.bank._ledger.store
    work = getattr(store, step)

    async def unanswered(*arguments: Any) -> None:
        await work(*arguments)
        raise StoreError("no answer within 5 s")

    with monkeypatch.context() as patch:
        patch.setattr(store, step, unanswered)
        assert await setup.manager.merge()
        await merged(setup)
    await setup.manager.save(str(tmp_path / "checkpoint"))
    assert await setup.bank.verify() == [] and len(setup.bank) == left
    extractor.replies["merge"] = retain
    assert await setup.manager.merge()
    await merged(setup, passes=2)


async def test_a_merge_shows_what_the_outcomes_say_about_each_entry(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"distill": False})
    setup.start()
    always, never = await setup.seed("always jump", "never jump", step=2)
    for number, (task, ids, success) in enumerate(
        [
            ("fetch", (always,), True),
            ("fetch", (always, never), False),  # the second was asked for
            ("lava", (never,), True),
            ("fetch", (), True),  # free
            ("fetch", (), False),
            ("fetch", (), False),
            ("fetch", (), False),
        ]
    ):
        request = make_request(str(number), task=task, success=success, experience_ids=ids)
        await setup.manager.report(EpisodeReport(request, guided=bool(ids)))
    await setup.manager.collect(7)
    await setup.manager.merge()
    await merged(setup)
    ((_, prompt),) = extractor.prompts
    assert (
        "1. (tasks: fetch; age 5 steps; used 2 times, 50% success (25% without))\nalways jump\nabout always jump\n\n"
        "2. (tasks: fetch; age 5 steps; fetch: read in 1 answer, 0% success (25% without); "
        "lava: used 1 time, 100% success)\nnever jump\nabout never jump"
    ) in prompt


async def test_a_merge_weighs_the_outcomes_of_answers_as_set(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    for weight, shown in ((0.5, "67%"), (1.0, "50%")):  # one use that succeeded, one answer that did not
        name = f"weight-{weight}"
        setup = await open_manager(name, extractor_settings={"distill": False}, bank={"asked_weight": weight})
        setup.start()
        entry, _ = await setup.seed("always jump", "never jump")
        other = "guide"  # of the second episode; the entry was asked for
        for id, ids, success in (("a", (entry,), True), ("b", (other, entry), False)):
            request = make_request(id, success=success, experience_ids=ids)
            await setup.manager.report(EpisodeReport(request, guided=True))
        await setup.manager.collect(1)
        await setup.manager.merge()
        await merged(setup)
        assert f"{shown} success" in extractor.prompts[-1][1].partition("always jump")[0], name


async def test_all_that_one_query_may_find_is_merged_together(open_manager: Open, extractor: Extractor) -> None:
    for scope, groups in (("all", [{"a", "b"}]), ("task", [{"a"}, {"b"}])):
        setup = await open_manager(scope, bank={"scope": scope}, merge=MergeConfig(chunk=4))
        setup.start()
        for task in ("a", "b"):
            await setup.seed(f"{task} one", f"{task} two", call_id=task, task=task)
        extractor.prompts.clear()
        await setup.manager.merge()
        await merged(setup)
        shown = [{task for task in "ab" if f"{task} one" in prompt} for _, prompt in extractor.prompts]
        assert sorted(shown, key=min) == groups


async def test_an_entry_merged_across_tasks_is_judged_in_each_of_them(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await open_manager(bank={"retire_min_uses": 2}, extractor_settings={"distill": False})
    setup.start()
    parents = [id for task in ("a", "b") for id in await setup.seed(f"jump in {task}", call_id=task, task=task)]
    extractor.replies["merge"] = answered({"operation": "merge", "ids": [1, 2], "title": "jump", "content": "always"})
    await setup.manager.merge()
    await merged(setup)
    (entry,) = setup.bank.entries()
    assert entry.tasks == ("a", "b")
    line, *gone = map(json.loads, (tmp_path / "bank.jsonl").read_text().splitlines())
    call = {"step": 0, "event": "removed", "reason": "replaced", "call": entry.record_id}
    assert sorted(gone, key=lambda event: event["entry"]) == [{**call, "entry": id} for id in sorted(parents)]
    assert (line["event"], line["entry"], line["tasks"]) == ("merged", entry.id, ["a", "b"])
    assert (line["title"], line["content"], set(line["parents"])) == ("jump", "always", set(parents))
    for number in range(4):
        for task, success in (("a", True), ("b", False)):
            request = make_request(f"{task}{number}", task=task, success=False, experience_ids=(entry.id,))
            await setup.manager.report(EpisodeReport(request, guided=True))
            free = make_request(f"free {task}{number}", task=task, success=success)
            await setup.manager.report(EpisodeReport(free, guided=False))
    await setup.manager.collect(1)
    (entry,) = setup.bank.entries()
    assert entry.quarantined == "0 of 8 successes, free half 0.50"
    last = json.loads((tmp_path / "bank.jsonl").read_text().splitlines()[-1])
    assert last == {"step": 1, "event": "quarantined", "entry": entry.id, "reason": entry.quarantined}


async def test_entries_that_are_gone_or_in_quarantine_by_then_are_not_listed(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2))
    setup.start()
    ids = await setup.seed("a a", "a a a", "b b", "b b b", "c c", "c c c")
    extractor.replies["merge"] = "unreadable"  # so that nothing is carried
    extractor.gate.clear()
    await setup.manager.merge()
    await until(lambda: len(extractor.prompts) == 1)
    await setup.bank.delete(ids[2:3])
    await setup.bank.quarantine(ids[3:4], "bad")
    extractor.gate.set()
    await merged(setup)
    assert [("a a" in prompt, "b b" in prompt, "c c" in prompt) for _, prompt in extractor.prompts] == [
        (True, False, False),
        (False, False, True),
    ]


async def test_an_entry_that_may_be_longer_than_a_prompt_is_not_listed(
    open_manager: Open, extractor: Extractor
) -> None:
    earlier = await open_manager(bank={"max_title_chars": 50_000})
    await earlier.seed("a a " * 9_000, "a", "a a")
    await earlier.manager.close()
    setup = await open_manager()
    setup.start()
    await setup.manager.merge()
    await merged(setup)
    ((_, prompt),) = extractor.prompts
    assert "a a a a" not in prompt and re.findall(r"\nabout (.+)", prompt) == ["a", "a a"]
    assert not [name for name in await setup.manager.metrics() if name.startswith("failures/merge")]


@pytest.mark.parametrize("others", [("a", "b"), ()])
async def test_the_longest_entries_of_a_chunk_that_does_not_fit_are_left_out(
    others: tuple[str, ...], open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(bank={"max_title_chars": 60_000})
    setup.start()
    await setup.seed("lava " * 10_000, "sand " * 11_000, *others)  # of a prompt of 100,000
    extractor.replies["merge"] = answered({"operation": "merge", "ids": [2, 3], "title": "t", "content": "c"})
    await setup.manager.merge()
    await merged(setup)
    assert [("lava" in prompt, "sand" in prompt) for _, prompt in extractor.prompts] == [(True, False)] * bool(others)
    left = {entry.title[:4] for entry in setup.bank.entries()}
    assert left == ({"lava", "sand", "t"} if others else {"lava", "sand"})
    assert ("failures/merge:PromptTooLong" in await setup.manager.metrics()) == (not others)


async def test_a_merge_that_cannot_read_the_bank_is_counted_and_the_next_one_starts(
    open_manager: Open, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await open_manager()
    setup.start()
    await setup.seed("a", "b")

    async def refuse(*_: object) -> None:
        raise StoreError("gone")

    async def failed() -> bool:
        return "failures/merge:StoreError" in await setup.manager.metrics()

    with monkeypatch.context() as patch:
        patch.setattr(setup.bank._ledger.store, "vectors", refuse)
        await setup.manager.merge()
        await until(failed)
    assert await setup.manager.merge()
    await merged(setup)


async def test_parts_of_the_bank_are_merged_concurrently_but_no_more_than_allowed(
    open_manager: Open, extractor: Extractor
) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2, workers=2))
    setup.start()
    await setup.seed(*(f"lesson {number}" for number in range(24)))
    extractor.replies["merge"] = answered({"operation": "retain", "ids": [1, 2]})
    extractor.gate.clear()
    await setup.manager.merge()
    await until(lambda: len(extractor.prompts) == 2)
    await asyncio.sleep(0.02)
    assert len(extractor.prompts) == 2  # twelve chunks in two runs of six
    extractor.gate.set()
    await merged(setup)
    listed = [prompt.count("about lesson") for _, prompt in extractor.prompts]
    assert listed == [2, 2] + [4] * 10  # each call after the first of a run also reads the output of the one before
