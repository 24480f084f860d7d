"""Random draws of a retrieval; an evaluation draws nothing and changes nothing."""

from collections import Counter
from typing import Any

import pytest

from verl_comprl.experience import Add
from verl_comprl.experience.transfer.snapshot import entries_checksum


async def filled(bank: Any, apply: Any, count: int = 6) -> list[str]:
    return list((await apply(bank, *[Add(title=f"lesson {n}", content="walk east") for n in range(count)])).new_ids)


async def found(bank: Any, times: int, **options: Any) -> list[str]:
    return [(await bank.retrieve("lesson", **options)).entry.id for _ in range(times)]


async def test_exploration_tries_every_entry_before_it_repeats_one(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retrieval_pool=2)
    ids = await filled(bank, apply)
    assert sorted(await found(bank, 6, explore=True)) == sorted(ids)
    assert all(bank.get(id).retrievals == 1 for id in ids)
    bank.record_outcome(ids[:4], success=False)
    # Used ones wait, however often the others are retrieved.
    assert set(await found(bank, 20, explore=True)) == set(ids[4:])


async def test_exploration_is_uniform_among_the_least_used(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    ids = await filled(bank, apply)
    drawn = Counter(await found(bank, 600, explore=True, read_only=True))  # which leaves all of them unused
    # Binomial(600, 1/6): 100 ± 9.1; all six stay within five deviations.
    assert set(drawn) == set(ids) and all(55 < times < 145 for times in drawn.values())


async def test_what_is_drawn_can_be_repeated(open_bank: Any, apply: Any) -> None:
    banks = [await open_bank(name, candidate_dropout=0.5) for name in ("one", "two", "three")]
    drawn = []
    for bank, seed in zip(banks, ("7 1", "7 1", "7 2"), strict=True):
        await filled(bank, apply)
        bank.random.seed(seed)
        drawn.append(await found(bank, 20) + await found(bank, 20, explore=True))
    assert drawn[0] == drawn[1] != drawn[2]


async def test_exploration_respects_scope_and_quarantine(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(scope="task")
    a, b = await filled(bank, apply, 2)
    (other,) = (await apply(bank, Add(title="other", content="x"), call_id="other", task="dig", step=9)).new_ids
    await bank.quarantine([a], "bad record")
    for _ in range(20):
        assert (await bank.retrieve("x", task="fetch", explore=True)).entry.id == b
        assert (await bank.retrieve("x", task="dig", explore=True)).entry.id == other
    await bank.quarantine([other], "bad record")
    nothing = await bank.retrieve("x", task="dig", explore=True)
    assert (nothing.status, nothing.entry) == ("nothing", None)


async def test_exploration_keeps_to_the_entries_of_the_task_if_there_are_any(bank: Any, apply: Any) -> None:
    mine = await filled(bank, apply, 2)
    (other,) = (await apply(bank, Add(title="other", content="x"), call_id="other", task="dig")).new_ids
    for id in mine:
        bank.record_outcome([id], success=True, task="fetch")
    assert set(await found(bank, 20, explore=True, task="fetch")) == set(mine)
    assert set(await found(bank, 20, explore=True, task="dig")) == {other}
    assert set(await found(bank, 5, explore=True, task="new")) == {other}  # any, the least used


async def test_dropped_candidates_give_way_to_others_in_training_only(open_bank: Any, apply: Any) -> None:
    settings = {"diversity": 0.0, "recency_seconds": 0.0}
    bank, dropping = await open_bank(**settings), await open_bank("dropping", candidate_dropout=0.5, **settings)
    for each in (bank, dropping):
        await filled(each, apply)
    (best,) = set(await found(bank, 30))
    drawn = Counter(await found(dropping, 400))
    # The best candidate is there half of the time: 200 ± 10. Those after it 100, 50, …
    assert drawn.most_common(1)[0][0] == best and 150 < drawn[best] < 250
    assert 65 < sorted(drawn.values())[-2] < 135
    assert set(await found(dropping, 30, read_only=True)) == {best}


async def test_equal_queries_of_an_evaluation_get_the_entry_with_the_best_record(open_bank: Any, apply: Any) -> None:
    bank = await open_bank()
    await filled(bank, apply)
    assert len(set(await found(bank, 6))) == 6
    (first, similarity), (second, lower) = await bank.search("lesson", 2)
    assert lower > 0.7 * similarity
    assert set(await found(bank, 8, read_only=True)) == {first.id}
    bank.record_outcome([first.id], success=False)
    for _ in range(2):
        bank.record_outcome([second.id], success=True)  # 3/4 against 1/3
    assert set(await found(bank, 8, read_only=True)) == {second.id}


async def test_a_record_does_not_make_an_entry_about_something_else_the_answer(bank: Any, apply: Any) -> None:
    key, lamp = (
        await apply(bank, Add(title="key door", content="take the key"), Add(title="lamp key", content="light it now"))
    ).new_ids
    for _ in range(8):
        bank.record_outcome([lamp], success=True)  # 0.9 against 0.5
    assert (await bank.retrieve("key door", read_only=True)).entry.id == key


@pytest.mark.parametrize(("level", "best"), [(1, 3), (7, 9)])
async def test_an_evaluation_takes_the_best_known_entry_whatever_the_level_of_success(
    bank: Any, apply: Any, level: int, best: int
) -> None:
    ids = (await apply(bank, *[Add(title="walk", content="east")] * 6)).new_ids  # equally similar
    for id, successes in zip(ids[:4], (best, level, level, level), strict=True):
        for number in range(10):
            bank.record_outcome([id], success=number < successes, task="fetch")
    assert (await bank.retrieve("walk east", read_only=True)).entry.id == ids[0]


async def test_questions_weigh_in_an_evaluation_as_much_as_configured(open_bank: Any, apply: Any) -> None:
    for weight, better in ((0.0, 1), (1.0, 0)):
        bank = await open_bank(f"weight {weight}", asked_weight=weight)
        asked, used = (await apply(bank, *[Add(title="walk", content="east")] * 2)).new_ids  # equally similar
        for _ in range(8):
            bank.record_outcome([asked], success=True, asked=True)
        bank.record_outcome([used], success=True)
        bank.record_outcome([used], success=False)
        bank.record_outcome([asked], success=False)
        assert (await bank.retrieve("walk east", read_only=True)).entry.id == (asked, used)[better]


async def test_an_evaluation_changes_nothing(bank: Any, apply: Any) -> None:
    await filled(bank, apply)
    before, content, state = bank.entries(), entries_checksum(bank.entries()), bank.random.getstate()
    await found(bank, 10, read_only=True)
    assert bank.entries() == before and entries_checksum(bank.entries()) == content
    assert bank.random.getstate() == state
    await bank.retrieve("lesson")
    assert entries_checksum(bank.entries()) != content


async def test_a_whole_pool_answers_identical_queries(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(recency_seconds=0.0)
    await filled(bank, apply, 20)
    drawn = Counter(await found(bank, 100))
    assert len(drawn) == 16 and max(drawn.values()) < 25


async def test_ranks_are_divided_by_the_pool_not_by_how_many_are_found(open_bank: Any, apply: Any) -> None:
    """1 − rank/16 − 0.4·ln(1 + retrievals): the second time 1 − 0.28 = 0.72 is below 15/16, and above 2/3."""
    bank = await open_bank(recency_seconds=0.0, diversity=0.4)
    titles = ("walk east now", "walk east", "walk")
    ids = [(await apply(bank, Add(title=title, content="x"), call_id=title)).new_ids[0] for title in titles]
    query = "walk east now x"
    drawn = [(await bank.retrieve(query)).entry.id for _ in range(3)]
    assert drawn == ids
