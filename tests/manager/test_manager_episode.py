"""One experience from episode to reward."""

import asyncio
from pathlib import Path

import pytest
from managed import LESSON, RETURN, WHERE, Extractor, MakeRequest, Open, Setup, answered

from verl_comprl.experience import Add, StoreError
from verl_comprl.experience.schema import derive_id
from verl_comprl.manager.messages import EpisodeReport, Guide, Judgement


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
    assert (entry.tasks, entry.environments) == (("fetch",), ("room",))
    assert (entry.created_step, entry.weight_version) == (1, 7)

    text = "open the door\ntake the key first"
    guide = await manager.guide("open the door", *WHERE)
    assert guide == Guide("found", text, entry.id, record_id)

    extractor.replies["distill"] = RETURN
    for id, success in (("a", True), ("b", False), ("c", True)):
        used = {"experience_ids": (entry.id,), "experience_texts": (entry.text,)}
        request = make_request(id, success=success, step=2, **used)
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


async def test_training_is_counted_with_the_entries_of_the_record(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    running = await open_manager(extractor_settings={"batch_size": 2})
    running.start()
    extractor.replies["distill"] = [
        answered(*({"operation": "add", "title": title, "content": "c"} for title in ("one", "two"))),
        LESSON,
        *[RETURN] * 2,
    ]
    for id in ("x", "y", "z"):
        await running.manager.report(EpisodeReport(make_request(id), guided=False))
        await running.finished()
    record_ids = (derive_id("distill", "x"), derive_id("distill", "z"))
    await running.manager.report(EpisodeReport(make_request("1"), guided=True, record_ids=record_ids))
    await running.manager.collect(9)
    assert await running.manager.next_batch() is not None
    await running.manager.trained()
    counted = {entry.title: (entry.trainings, entry.last_trained_step) for entry in running.bank.entries()}
    assert counted == {"one": (1, 9), "two": (1, 9), "open the door": (0, None)}


async def test_an_update_is_weighed_at_its_own_step(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    """Eq. 7 with the defaults α = 0.5 and δ = 1, at the actor step in which the batch is taken."""
    setup = await open_manager(extractor_settings={"batch_size": 2})
    setup.start()
    extractor.replies["distill"] = [LESSON, LESSON, *[RETURN] * 6]
    for id in ("x", "y"):
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    await setup.finished()
    weights = []
    for step in (2, 3, 4):
        for id, success in (("x", True), ("y", False)):
            used = (derive_id("distill", id),)
            request = make_request(f"{step}{id}", success=success, step=step)
            await setup.manager.report(EpisodeReport(request, guided=True, record_ids=used))
        await setup.manager.collect(step)
        if step == 2:
            continue  # two batches wait at step 3
        while batch := await setup.manager.next_batch():
            weights.append(batch.weights)
            await setup.manager.trained()
    assert weights == [[1, 1], [0, 0], pytest.approx([2**-0.5] * 2)]


async def test_votes_are_asked_for_only_where_they_are_wanted(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    vote = answered({"operation": "upvote", "ids": [1]})
    for votes, expected in ((False, (0, 1)), (True, (1, 0))):
        setup = await open_manager(f"votes-{votes}", votes=votes)
        setup.start()
        (entry,) = await setup.seed("open the door")
        extractor.replies["distill"] = vote
        used = {"experience_ids": (entry,), "experience_texts": ("about it",)}
        await setup.manager.report(EpisodeReport(make_request("a", **used), guided=True))
        metrics = await setup.finished()
        assert ("upvote" in extractor.prompts[-1][1]) == votes
        upvotes = setup.bank.get(entry)
        assert upvotes is not None
        assert (upvotes.upvotes, metrics.get("parse_failures/unknown_operation", 0)) == expected


async def test_entries_that_do_worse_than_the_free_half_retire(open_manager: Open, make_request: MakeRequest) -> None:
    setup = await open_manager(bank={"retire_min_uses": 2, "retire_margin": 0.2})
    bad, good = await setup.seed("bad door", "good door")
    for number, (guide, success) in enumerate(((bad, False), (bad, False), (good, True), (good, False))):
        request = make_request(f"guided {number}", success=success, experience_ids=(guide,))
        await setup.manager.report(EpisodeReport(request, guided=True))
    for number, success in enumerate((True, False, True, False)):
        assert (await setup.manager.metrics())["bank/quarantined"] == 0
        await setup.manager.report(EpisodeReport(make_request(f"free {number}", success=success), guided=False))
    await setup.manager.collect(1)
    retired = setup.bank.get(bad)
    assert retired is not None and retired.quarantined == "0 of 2 successes, free half 0.50"
    assert (await setup.manager.metrics())["bank/quarantined"] == 1


async def test_what_is_nearest_depends_on_the_outcome(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"list_nearest": 1})
    setup.start()
    await setup.seed("find the blue key success", "find the blue key failure")
    for id, success in (("a", True), ("b", False)):
        request = make_request(id, success=success, goal="find the blue key")
        await setup.manager.report(EpisodeReport(request, guided=False))
        await setup.finished()
        listed = extractor.prompts[-1][1].partition("1. find the blue key ")[2]
        assert listed.startswith("success" if success else "failure")


@pytest.mark.parametrize("guided", [True, False])
async def test_a_distillation_lists_the_entries_nearest_to_goal_and_outcome(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, guided: bool
) -> None:
    setup = await open_manager(extractor_settings={"list_nearest": 2}, bank={"scope": "task"})
    setup.start()
    ids = await setup.seed("find the blue key success", "find the blue key failure", "find the key", "pray")
    await setup.seed("find the blue key success", call_id="other", task="elsewhere")
    read = {"experience_ids": ids[:1], "experience_texts": ["as it was"]} if guided else {}
    last = 3 if guided else 2
    update = {"operation": "update", "ids": [last], "title": "t", "content": "c"}
    beyond = {"operation": "update", "ids": [last + 1], "title": "t", "content": "c"}
    extractor.replies["distill"] = answered(update, beyond)
    request = make_request("a", success=True, goal="find the blue key", **read)
    await setup.manager.report(EpisodeReport(request, guided=guided))
    metrics = await setup.finished()
    nearest = ids[1:3] if guided else ids[:2]  # the guide is not listed twice
    prompt = extractor.prompts[-1][1]
    listed = [prompt.index(f"{at}. find the") for at in ((2, 3) if guided else (1, 2))]
    assert listed == sorted(listed) and ("1. as it was" in prompt) == guided
    assert (metrics["operations/updated"], metrics["parse_failures/bad_index"]) == (1, 1)
    (new,) = [entry for entry in setup.bank.entries() if entry.title == "t"]
    assert new.parents == (nearest[1],)
    assert metrics["bank/retrievals"] == 0 and all(not entry.retrievals for entry in setup.bank.entries())


async def test_without_a_search_the_episode_is_distilled_with_what_there_is(
    open_manager: Open, extractor: Extractor, monkeypatch: pytest.MonkeyPatch, make_request: MakeRequest
) -> None:
    setup = await open_manager()
    setup.start()
    entry, _ = await setup.seed("open the door", "close the door")

    async def refuse(*_: object) -> None:
        raise StoreError("gone")

    monkeypatch.setattr(setup.bank._ledger.store, "search", refuse)
    read = {"experience_ids": (entry,), "experience_texts": ("about it",)}
    await setup.manager.report(EpisodeReport(make_request("a", **read), guided=True))
    metrics = await setup.finished()
    assert metrics["failures/list_nearest:StoreError"] == 1 and metrics["operations/returned"] == 1
    assert "1. about it\n\nOther earlier experience:\n(none)" in extractor.prompts[0][1]

    without = await open_manager("without", extractor_settings={"list_nearest": 0})
    without.start()
    monkeypatch.setattr(without.bank._ledger.store, "search", refuse)
    await without.manager.report(EpisodeReport(make_request("b"), guided=False))
    assert "failures/list_nearest:StoreError" not in await without.finished()


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


async def test_a_share_of_the_episodes_is_distilled_and_all_are_credited(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"distill_share": 0.3})
    setup.start()
    (entry,) = await setup.seed("open the door")
    for id in "abcdef":
        await setup.manager.report(EpisodeReport(make_request(id, goal=id, experience_ids=(entry,)), guided=True))
    metrics = await setup.finished()
    assert (metrics["distillations/return"], metrics["distillations/skipped"]) == (4, 2)  # see test_draw: b and d
    used = setup.bank.get(entry)
    assert used is not None and used.uses == 6 and len(extractor.prompts) == 4


async def test_uses_per_entry_compares_guides_with_entries_written(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"distillation_workers": 1})
    setup.start()
    assert "bank/uses_per_entry" not in await setup.manager.metrics()
    update = {"operation": "update", "ids": [1], "title": "open it", "content": "c"}
    extractor.replies["distill"] = [LESSON, LESSON, answered(update)]
    for id in "ab":
        await setup.manager.report(EpisodeReport(make_request(id), guided=False))
    await setup.finished()
    guide = await setup.manager.guide("open the door", *WHERE)
    await setup.manager.guide("open the door", *WHERE, read_only=True)  # an evaluation is no use
    used = {"experience_ids": (str(guide.experience_id),), "experience_texts": (str(guide.text),)}
    await setup.manager.report(EpisodeReport(make_request("c", **used), guided=True))
    metrics = await setup.finished()
    assert (metrics["operations/added"], metrics["operations/updated"]) == (2, 1)
    assert metrics["bank/uses_per_entry"] == pytest.approx(1 / 3)


async def test_an_entry_of_a_longer_run_has_no_negative_age(running: Setup) -> None:
    await running.seed("mine", step=2)
    await running.seed("imported", call_id="other", step=145)
    assert (await running.manager.collect(8))["bank/age"] == 3  # (6 + 0) / 2


async def test_a_critics_verdict_is_counted_and_its_score_added(running: Setup, make_request: MakeRequest) -> None:
    await running.seed("open the door")
    entry = str((await running.manager.search_and_ask("x", *WHERE)).record_id)
    answer = str((await running.manager.search_and_ask("y", *WHERE)).record_id)
    rejected = EpisodeReport(
        make_request("p_0", success=True), guided=False, record_ids=(entry,), judgement=Judgement("reject", entry)
    )
    await running.manager.report(rejected)
    await running.manager.collect(1)
    batch = await running.manager.next_batch()
    assert batch and batch.rewards == [1.0]  # Eq. 8: 0 + 1
    await running.manager.trained()
    refined = EpisodeReport(
        make_request("p_1", success=False),
        guided=True,
        record_ids=(entry, answer),
        judgement=Judgement("refine", entry),
    )
    await running.manager.report(refined)
    await running.manager.collect(2)
    rewards = {}
    while batch := await running.manager.next_batch():
        rewards[batch.records[0].id] = batch.rewards[0]
        await running.manager.trained()
    assert rewards == {entry: -0.5, answer: -1.0}  # the verdict is about the entry, not about the answer
    metrics = await running.manager.metrics()
    assert (metrics["verdicts/reject"], metrics["verdicts/refine"]) == (1, 1)


async def test_a_manager_that_does_not_distil_keeps_a_restored_queue_says_so_and_does_not_wait_for_it(
    open_manager: Open,
    make_request: MakeRequest,
    extractor: Extractor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await open_manager("first")
    await first.manager.report(EpisodeReport(make_request("waiting"), guided=False))
    await first.manager.save(str(tmp_path / "saved"))
    second = await open_manager("second", extractor_settings={"distill": False})
    await second.manager.restore(str(tmp_path / "saved"))
    second.start()
    assert "1 episodes wait to be distilled" in caplog.text
    async with asyncio.timeout(30):
        assert not await second.manager.drain(3600)
    assert extractor.prompts == [] and (await second.manager.metrics())["queue/depth"] == 1
    await second.manager.save(str(tmp_path / "later"))
    assert (tmp_path / "later" / "queue.jsonl").read_text() == (tmp_path / "saved" / "queue.jsonl").read_text()

    caplog.clear()
    third = await open_manager("third")  # a run that distils again
    await third.manager.restore(str(tmp_path / "later"))
    third.start()
    assert (await third.finished())["queue/depth"] == 0 and len(extractor.prompts) == 1
    (await open_manager("fourth", extractor_settings={"distill": False})).start()
    assert "wait to be distilled" not in caplog.text


async def test_siblings_that_update_the_same_entry_end_with_the_newest_text_and_none_is_punished(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"distillation_workers": 1})
    (entry,) = await setup.seed("open the door")
    updates = [{"operation": "update", "ids": [1], "title": "open the door", "content": f"text {n}"} for n in range(4)]
    extractor.replies["distill"] = [answered(update) for update in updates]
    used = {"experience_ids": (entry,), "experience_texts": ("open the door\nabout open the door",)}
    for number in range(4):
        await setup.manager.report(EpisodeReport(make_request(str(number), **used), guided=True))
    setup.start()
    metrics = await setup.finished()

    (newest,) = setup.bank.entries()
    assert newest.content == "text 3" and metrics["operations/updated"] == 4
    assert metrics.get("operations/rejected", 0) == 0
    # All four read the entry as their episode did, although three of them found it replaced.
    assert all("1. open the door\nabout open the door" in prompt for _, prompt in extractor.prompts)
    assert (await setup.manager.collect(1))["extractor/samples"] == 0  # no format failure


async def test_an_extractor_that_is_not_trained_keeps_neither_records_nor_samples(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(extractor_settings={"train": False})
    setup.start()
    extractor.replies["distill"] = [LESSON, "unreadable"]
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    await setup.finished()
    guide = await setup.manager.guide("open the door", *WHERE)
    answer = await setup.manager.search_and_ask("open the door", *WHERE)
    records = (str(guide.record_id), str(answer.record_id))
    read = {"experience_ids": (guide.experience_id,), "experience_texts": ("x",)}
    await setup.manager.report(EpisodeReport(make_request("b", success=True, **read), guided=True, record_ids=records))
    await setup.finished()
    metrics = await setup.manager.collect(1)
    assert (metrics["buffer/records"], metrics["buffer/samples"], metrics["extractor/samples"]) == (0, 0, 0)
    assert [entry.uses for entry in setup.bank.entries()] == [1]


async def test_a_long_entry_is_read_whole_if_the_bank_keeps_it(open_manager: Open) -> None:
    setup = await open_manager(bank={"max_content_chars": 20_000, "max_title_chars": 500})
    lesson = Add(title="t" * 500, content="Take the key. " * 1400 + "end")
    await setup.bank.apply([lesson], call_id="c", listed=(), task="fetch", environment="room", step=0, weight_version=0)
    (entry,) = setup.bank.entries()
    assert entry.content.endswith("end") and len(entry.text) > 8000
    assert (await setup.manager.guide("key", *WHERE)).text == entry.text
    setup.start()
    answer = await setup.manager.search_and_ask("key", *WHERE)
    assert answer.experience_text == entry.text


async def test_an_entry_that_may_be_longer_than_a_prompt_keeps_no_other_from_the_list(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    earlier = await open_manager(bank={"max_title_chars": 50_000})
    *_, near = await earlier.seed(*("find the key success " * number for number in (2_000, 2_001, 2_002)), "find a key")
    await earlier.manager.close()
    setup = await open_manager(extractor_settings={"list_nearest": 1})
    setup.start()
    extractor.replies["distill"] = answered({"operation": "update", "ids": [1], "title": "t", "content": "c"})
    await setup.manager.report(EpisodeReport(make_request("a", success=True, goal="find the key"), guided=False))
    assert (await setup.finished())["operations/updated"] == 1
    (new,) = [entry for entry in setup.bank.entries() if entry.title == "t"]
    assert new.parents == (near,)
