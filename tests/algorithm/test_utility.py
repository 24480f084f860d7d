"""Utilities, the weight of Eq. 7 and the extractor's advantages against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.algorithm.utility import (
    extractor_advantages,
    gini,
    mean_utilities,
    outcome_reward,
    relative_reward,
    training_weight,
)


def test_an_outcome_is_plus_or_minus_one() -> None:
    assert (outcome_reward(True), outcome_reward(False)) == (1.0, -1.0)


@pytest.mark.parametrize(
    ("success", "free", "reward"),
    [
        (True, [True, False, False, False], 1.5),  # 1 − (1 − 3)/4
        (False, [True, False, False, False], -0.5),
        (True, [True, True], 0.0),
        (False, [True], -2.0),
        (True, [], 1.0),
    ],
)
def test_a_relative_reward_is_the_outcome_minus_the_mean_of_the_free_half(
    success: bool, free: list[bool], reward: float
) -> None:
    assert relative_reward(success, free) == reward


def test_utilities_are_averaged_per_record_in_order_of_first_use() -> None:
    uses = [("b", 1.0), ("a", -1.0), ("b", -1.0), ("b", 1.0)]
    assert list(mean_utilities(uses).items()) == [("b", pytest.approx(1 / 3)), ("a", -1.0)]
    assert mean_utilities([]) == {}


@pytest.mark.parametrize(
    ("step", "last", "count", "alpha", "cooldown", "weight"),
    [
        (5, None, 0, 0.5, 1, 1.0),  # never trained
        (5, 5, 1, 0.5, 1, 0.0),  # 0 < 1
        (6, 5, 1, 0.5, 1, 1 / math.sqrt(2)),  # 1 < 1 is false: at the boundary it is trained on
        (9, 5, 3, 0.5, 4, 0.5),  # 4 < 4 is false; 4^−½
        (8, 5, 3, 0.5, 4, 0.0),  # 3 < 4
        (5, 5, 8, 0.5, 0, 1 / 3),  # no cooldown; 9^−½
        (6, 5, 3, 0.0, 1, 1.0),  # α = 0: no decay
        (6, 5, 3, 1.0, 1, 0.25),  # α = 1
        (6, 4, 1, 0.5, 2.5, 0.0),  # δ need not be an integer
    ],
)
def test_training_weight(step: int, last: int | None, count: int, alpha: float, cooldown: float, weight: float) -> None:
    assert training_weight(step, last, count, alpha=alpha, cooldown=cooldown) == pytest.approx(weight)


def test_advantages_of_one_kind() -> None:
    # mean of 1 −1 1 0 is 1/4; the weight comes after the baseline, so a record on cooldown still counts in it
    advantages = extractor_advantages([1, -1, 1, 0], [1, 1, 0.5, 0], ["distill"] * 4, [False] * 4)
    np.testing.assert_allclose(advantages, [0.75, -1.25, 0.375, 0.0])


def test_every_kind_of_call_has_its_own_baseline() -> None:
    # distill: 1 and −1, mean 0; answer: 1, 1 and −1, mean 1/3; a merge alone equals its mean
    kinds = ["distill", "answer", "distill", "answer", "answer", "merge"]
    advantages = extractor_advantages([1, 1, -1, 1, -1, -1], [1, 1, 1, 1, 0.5, 1], kinds, [False] * 6)
    np.testing.assert_allclose(advantages, [1, 2 / 3, -1, 2 / 3, -2 / 3, 0])


def test_a_format_failure_is_compared_with_the_outcomes_of_its_kind_but_at_least_with_0() -> None:
    # distill: outcomes 1, 1, −1, mean 1/3; answer: outcomes −1 and −1, so that 0 is the baseline of failures;
    # merge: no outcome in the batch
    kinds = ["distill"] * 4 + ["answer"] * 3 + ["merge"]
    failed = [False, False, False, True, False, False, True, True]
    advantages = extractor_advantages([1, 1, -1, -1, -1, -1, -1, -1], [1] * 8, kinds, failed)
    np.testing.assert_allclose(advantages, [2 / 3, 2 / 3, -4 / 3, -4 / 3, 0, 0, -1, -1])


KINDS = st.sampled_from(["distill", "merge", "answer"])
OUTCOMES = st.lists(st.tuples(st.floats(-2, 3), KINDS), min_size=1, max_size=12)


@given(outcomes=OUTCOMES, failures=st.lists(KINDS, max_size=6), reward=st.floats(-2, 0))
def test_format_failures_are_pushed_down_and_change_no_other_advantage(
    outcomes: list[tuple[float, str]], failures: list[str], reward: float
) -> None:
    rewards, kinds = [value for value, _ in outcomes], [kind for _, kind in outcomes]
    alone = extractor_advantages(rewards, [1] * len(rewards), kinds, [False] * len(rewards))
    mixed = extractor_advantages(
        rewards + [reward] * len(failures),
        [1] * (len(rewards) + len(failures)),
        kinds + failures,
        [False] * len(rewards) + [True] * len(failures),
    )
    assert mixed[: len(rewards)].tolist() == alone.tolist()
    assert all(value < 0 if reward < 0 else value <= 0 for value in mixed[len(rewards) :])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], 0.0),
        ([0, 0], 0.0),
        ([3, 3, 3], 0.0),
        ([0, 0, 0, 8], 0.75),  # (n − 1) / n
        ([1, 2, 3], 2 / 9),  # Σ|x_i − x_j| = 8 over 2·n²·mean = 36
    ],
)
def test_gini_by_hand(counts: list[int], expected: float) -> None:
    assert gini(counts) == pytest.approx(expected)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_gini_is_half_the_relative_mean_difference(counts: list[int]) -> None:
    mean = sum(counts) / len(counts)
    differences = sum(abs(a - b) for a in counts for b in counts)
    assert gini(counts) == pytest.approx(differences / (2 * len(counts) ** 2 * mean) if mean else 0.0)
