"""Random retrieval, and evaluations whose retrievals count only within the evaluation."""

from collections import Counter
from random import Random
from typing import Any

from verl_comprl.experience import Add
from verl_comprl.experience.transfer.snapshot import entries_checksum


async def filled(bank: Any, apply: Any, count: int = 6) -> list[str]:
    return list((await apply(bank, *[Add(title=f"lesson {n}", content="walk east") for n in range(count)])).new_ids)


async def test_a_random_retrieval_is_uniform(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(retrieval_pool=2)
    ids = await filled(bank, apply)
    random = Random(0)
    drawn = Counter([(await bank.retrieve("lesson", at_random=random)).entry.id for _ in range(600)])
    # Binomial(600, 1/6): 100 ± 9.1; all six stay within five deviations.
    assert set(drawn) == set(ids) and all(55 < times < 145 for times in drawn.values())
    assert {id: bank.get(id).retrievals for id in ids} == drawn


async def test_a_random_retrieval_respects_scope_and_quarantine(open_bank: Any, apply: Any) -> None:
    bank = await open_bank(scope="task")
    a, b = await filled(bank, apply, 2)
    (other,) = (await apply(bank, Add(title="other", content="x"), call_id="other", task="dig", step=9)).new_ids
    await bank.quarantine([a], "bad record")
    for _ in range(20):
        assert (await bank.retrieve("x", task="fetch", at_random=Random())).entry.id == b
        assert (await bank.retrieve("x", task="dig", at_random=Random())).entry.id == other
    nothing = await bank.retrieve("x", task="dig", at_random=Random(), exclude=[other])
    assert (nothing.status, nothing.entry) == ("nothing", None)
    assert (await bank.retrieve("x", task="dig", at_random=Random(), max_step=8)).status == "nothing"


async def test_an_evaluation_spreads_over_entries_as_training_does(open_bank: Any, apply: Any) -> None:
    bank, twin = await open_bank(diversity=4.0), await open_bank("twin", diversity=4.0)
    await filled(bank, apply)
    await filled(twin, apply)
    titles = lambda found: [retrieval.entry.title for retrieval in found]  # noqa: E731
    evaluated = [await bank.retrieve("lesson", read_only=True, evaluation_id="step 1") for _ in range(24)]
    counted = [await twin.retrieve("lesson") for _ in range(24)]
    assert titles(evaluated) == titles(counted) and len(set(titles(counted))) > 1
    # Another evaluation starts like the first one; a plain read-only retrieval always finds the same.
    again = [await bank.retrieve("lesson", read_only=True, evaluation_id="step 2") for _ in range(24)]
    assert titles(again) == titles(evaluated)
    assert len(set(titles([await bank.retrieve("lesson", read_only=True) for _ in range(8)]))) == 1


async def test_an_evaluation_changes_nothing(bank: Any, apply: Any) -> None:
    await filled(bank, apply)
    before, content = bank.entries(), entries_checksum(bank.entries())
    for _ in range(10):
        await bank.retrieve("lesson", read_only=True, evaluation_id="step 1")
    assert bank.entries() == before and entries_checksum(bank.entries()) == content
    await bank.retrieve("lesson")
    assert entries_checksum(bank.entries()) != content
