"""Subgroup advantages against numbers worked out by hand, a plain second implementation, and verl's GRPO."""

import statistics
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.algorithm.advantage import (
    better_than_free,
    output_shares,
    subgroup_advantages,
    subgroup_weights,
)

GUIDED, FREE = [True] * 4, [False] * 4

# Quarters are exact in binary, so sums of them do not depend on the order of summation.
rollout = st.tuples(st.integers(-8, 8).map(lambda n: n / 4), st.sampled_from("pqr"), st.booleans())
rollouts = st.lists(rollout, min_size=1, max_size=24)


def unzip(rows: list[tuple[float, str, bool]]) -> tuple[np.ndarray, list[str], list[bool]]:
    return np.array([row[0] for row in rows]), [row[1] for row in rows], [row[2] for row in rows]


def plain_advantages(rows: list[tuple[float, str, bool]], norm_by_std: bool) -> list[float]:
    groups = defaultdict(list)
    for reward, *key in rows:
        groups[tuple(key)].append(reward)
    result = []
    for reward, *key in rows:
        members = groups[tuple(key)]
        deviation = reward - statistics.fmean(members)
        if len(members) == 1:
            deviation = 0.0
        elif norm_by_std:
            deviation /= statistics.stdev(members) + 1e-6
        result.append(deviation)
    return result


def test_four_guided_and_four_free() -> None:
    # guided 1 1 0 0: mean 1/2, variance 4·(1/4)/3 = 1/3, std 0.5773503; 0.5/0.5773513 = 0.8660239
    # free   1 0 0 0: mean 1/4, variance (9/16 + 3/16)/3 = 1/4, std 1/2; 0.75/0.500001 = 1.499997
    advantages = subgroup_advantages(np.array([1.0, 1, 0, 0, 1, 0, 0, 0]), ["p"] * 8, GUIDED + FREE)
    expected = [0.8660239, 0.8660239, -0.8660239, -0.8660239, 1.499997, -0.499999, -0.499999, -0.499999]
    np.testing.assert_allclose(advantages, expected, atol=1e-7)


def test_without_std_only_the_mean_is_subtracted() -> None:
    rewards = np.array([1.0, 1, 0, 0, 1, 0, 0, 0])
    advantages = subgroup_advantages(rewards, ["p"] * 8, GUIDED + FREE, norm_by_std=False)
    assert advantages.tolist() == [0.5, 0.5, -0.5, -0.5, 0.75, -0.25, -0.25, -0.25]


def test_unequal_halves_and_a_subgroup_of_one() -> None:
    # guided 1 0 1: mean 2/3, variance (1/9 + 4/9 + 1/9)/2 = 1/3, std 0.5773503; (1/3)/0.5773513 = 0.5773493
    rewards, guided = np.array([1.0, 0, 1, 5]), [True, True, True, False]
    expected = [0.5773493, -1.1546985, 0.5773493, 0.0]
    np.testing.assert_allclose(subgroup_advantages(rewards, ["p"] * 4, guided), expected, atol=1e-7)
    assert subgroup_advantages(rewards, ["p"] * 4, guided)[3] == 0.0
    assert subgroup_weights(["p"] * 4, guided).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_an_empty_half_and_a_second_prompt() -> None:
    prompts, guided = ["p", "p", "q", "q", "p"], [False, False, True, False, False]
    # free 3 1 2 of p: mean 2, variance (1 + 1 + 0)/2 = 1
    advantages = subgroup_advantages(np.array([3.0, 1, 9, 7, 2]), prompts, guided)
    np.testing.assert_allclose(advantages, [1 / 1.000001, -1 / 1.000001, 0, 0, 0], atol=1e-12)
    assert subgroup_weights(prompts, guided).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 2, 1 / 2, 1 / 3])


@pytest.mark.parametrize("reward", [0.1, 1e9 / 3, -1e-9])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point.
    assert subgroup_advantages(np.full(3, reward), ["p"] * 3, GUIDED[:3]).tolist() == [0.0, 0.0, 0.0]


@given(rollouts, st.booleans())
def test_agrees_with_a_plain_implementation(rows: list[tuple[float, str, bool]], norm_by_std: bool) -> None:
    advantages = subgroup_advantages(*unzip(rows), norm_by_std=norm_by_std)
    np.testing.assert_allclose(advantages, plain_advantages(rows, norm_by_std), atol=1e-9)


@given(rollouts, st.randoms())
def test_permuting_the_rollouts_permutes_the_result(rows: list[tuple[float, str, bool]], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = [rows[position] for position in order]
    np.testing.assert_allclose(
        subgroup_advantages(*unzip(shuffled)), subgroup_advantages(*unzip(rows))[order], atol=1e-9
    )
    np.testing.assert_array_equal(subgroup_weights(*unzip(shuffled)[1:]), subgroup_weights(*unzip(rows)[1:])[order])


@given(rollouts)
def test_weights_sum_to_one_per_prompt_and_to_one_half_per_half(rows: list[tuple[float, str, bool]]) -> None:
    _, prompts, guided = unzip(rows)
    by_prompt, by_half = defaultdict(float), defaultdict(float)
    for prompt, half, weight in zip(prompts, guided, subgroup_weights(prompts, guided), strict=True):
        by_prompt[prompt] += weight
        by_half[prompt, half] += weight
    assert all(total == pytest.approx(1.0) for total in by_prompt.values())
    for (prompt, half), total in by_half.items():
        assert total == pytest.approx(0.5 if (prompt, not half) in by_half else 1.0)


@given(rollouts, st.booleans())
def test_agrees_with_verls_grpo_on_subgroups_of_two_or_more(
    rows: list[tuple[float, str, bool]], norm_by_std: bool
) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rows = rows + rows  # gives every subgroup at least two members
    rewards, prompts, guided = unzip(rows)
    theirs, _ = compute_grpo_outcome_advantage(
        torch.tensor(rewards).unsqueeze(-1),
        torch.ones(len(rows), 1),
        np.array([f"{prompt}{half}" for _, prompt, half in rows]),
        norm_adv_by_std_in_grpo=norm_by_std,
    )
    ours = subgroup_advantages(rewards, prompts, guided, norm_by_std=norm_by_std)
    np.testing.assert_allclose(ours, theirs.squeeze(-1).numpy(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_gives_a_tensor_of_its_type_without_gradient(dtype: torch.dtype) -> None:
    rewards = torch.tensor([1.0, 0.0], dtype=dtype, requires_grad=True)
    advantages = subgroup_advantages(rewards, ["p", "p"], [True, True], norm_by_std=False)
    assert isinstance(advantages, torch.Tensor) and advantages.dtype == dtype and not advantages.requires_grad
    assert advantages.tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    ("given_type", "expected"), [("float32", "float32"), ("float64", "float64"), ("int64", "float64")]
)
def test_an_array_gives_a_floating_array(given_type: str, expected: str) -> None:
    advantages = subgroup_advantages(np.array([1, 0], given_type), ["p", "p"], [False, False], norm_by_std=False)
    assert isinstance(advantages, np.ndarray) and advantages.dtype == expected
    assert advantages.tolist() == [0.5, -0.5]


def test_no_rollouts_give_empty_arrays() -> None:
    assert subgroup_advantages(np.zeros(0), [], []).shape == (0,)
    assert subgroup_weights([], []).shape == (0,)


def test_wrong_shapes_are_named_in_the_error() -> None:
    with pytest.raises(ValueError, match=r"one-dimensional, got shape \(2, 1\)"):
        subgroup_advantages(np.zeros((2, 1)), ["p", "p"], [True, True])
    with pytest.raises(ValueError, match="got 3 rewards, 2 prompt ids, 1 guided"):
        subgroup_advantages(np.zeros(3), ["p", "p"], [True])
    with pytest.raises(ValueError, match="2 prompt ids, 1 guided"):
        subgroup_weights(["p", "p"], [True])


def test_shares_are_proportional_to_tokens() -> None:
    # p/0 has outputs of 3 and 1 tokens, p/1 one of 5; q/0 generated nothing
    shares = output_shares(["p/0", "p/1", "p/0", "q/0"], [3, 5, 1, 0])
    assert shares.tolist() == [0.75, 1.0, 0.25, 0.0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.floats(-5, 5), min_size=1, max_size=4)), min_size=1))
def test_means_of_outputs_weighted_by_shares_are_the_mean_over_the_rollout(
    outputs: list[tuple[str, list[float]]],
) -> None:
    rollouts, terms = zip(*outputs, strict=True)
    shares = output_shares(rollouts, [len(values) for values in terms])
    for rollout in set(rollouts):
        rows = [row for row, name in enumerate(rollouts) if name == rollout]
        everything = [value for row in rows for value in terms[row]]
        together = sum(shares[row] * statistics.fmean(terms[row]) for row in rows)
        assert together == pytest.approx(statistics.fmean(everything), abs=1e-9)


def test_better_than_free_is_guided_and_above_the_free_mean_of_its_prompt() -> None:
    # p: free mean ½, so the guided success is better and the failure is not. q: all free succeed, nothing is better.
    # r has no free half to compare with.
    prompts, guided = list("pppp" + "qq" + "r"), [True, True, False, False, True, False, True]
    rewards = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert better_than_free(rewards, prompts, guided).tolist() == [True] + [False] * 6
    # Of the free ones only p's success is above its mean.
    assert better_than_free(rewards, prompts, guided, of_guided=False).tolist() == [False] * 2 + [True] + [False] * 4
