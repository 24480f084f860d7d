"""Entries: names, totals and the posterior of their success."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.experience import BankConfig, Experience, TaskUsage, derive_id

COUNTS = st.integers(0, 50)


def entry(*usage: TaskUsage, **fields: Any) -> Experience:
    return Experience(id="a", title="", content="c", usage=usage, **fields)


@pytest.mark.parametrize(
    ("usage", "weight", "expected"),
    [
        ((), 0.5, 1 / 2),
        ((TaskUsage(task="a", uses=1, successes=1),), 0.5, 2 / 3),
        ((TaskUsage(task="a", uses=10, successes=1),), 0.5, 2 / 12),
        ((TaskUsage(task="a", asked=2, asked_successes=2),), 0.5, 2 / 3),  # two questions count as one use
        ((TaskUsage(task="a", asked=2, asked_successes=2),), 0.0, 1 / 2),
        ((TaskUsage(task="a", uses=3, asked=1), TaskUsage(task="b", uses=1, successes=1)), 0.5, 2 / 6.5),
    ],
)
def test_posterior_is_the_mean_of_a_beta_distribution(
    usage: tuple[TaskUsage, ...], weight: float, expected: float
) -> None:
    assert entry(*usage).posterior(weight) == pytest.approx(expected)


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), max_size=4))
def test_totals_are_sums_over_tasks(counts: list[tuple[int, int, int, int]]) -> None:
    usage = [
        TaskUsage(task=str(n), uses=a + b, successes=a, asked=c + d, asked_successes=c)
        for n, (a, b, c, d) in enumerate(counts)
    ]
    made = entry(*usage)
    a, b, c, d = (sum(column) for column in zip((0,) * 4, *counts, strict=True))
    assert (made.uses, made.successes, made.asked, made.asked_successes) == (a + b, a, c + d, c)
    assert made.success_rate == (a / (a + b) if a + b else None)
    assert made.posterior_success == pytest.approx((a + c / 2 + 1) / (a + b + (c + d) / 2 + 2))


def test_names_are_a_sorted_set() -> None:
    made = entry(tasks=("b", "a", "b"), environments=["x"])
    assert (made.tasks, made.environments) == (("a", "b"), ("x",))


def test_ids_stay_as_they_are_in_banks_and_any_text_has_one() -> None:
    assert derive_id("distill", "épisode", 7) == "6e13b602-24b3-5f52-800b-b663b7b315d7"
    assert derive_id("half an emoji \ud83d") != derive_id("half an emoji \ude00")


def test_a_bank_may_not_have_the_name_of_anothers_lease() -> None:
    with pytest.raises(ValueError, match=r"collection must not end in \.lease, got 'x\.lease'"):
        BankConfig(url="http://127.0.0.1:6333", collection="x.lease")
