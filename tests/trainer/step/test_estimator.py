"""The advantage estimator, called as verl calls it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from verl_comprl.trainer.step.estimator import split_subgroup_uid, subgroup_uid


@given(st.text(), st.booleans(), st.sampled_from(["", "u_3", "0"]))
def test_half_and_rollout_round_trip_through_the_uid(uid: str, guided: bool, rollout: str) -> None:
    assert split_subgroup_uid(subgroup_uid(uid, guided, rollout)) == (uid, guided, rollout)


@pytest.mark.parametrize("uid", ["3f2a", "a#b", "a#half#0", "#"])
def test_a_plain_uid_counts_as_free(uid: str) -> None:
    assert split_subgroup_uid(uid) == (uid, False, "")


@pytest.mark.parametrize(("norm_by_std", "scale"), [(True, 1 / (math.sqrt(0.5) + 1e-6)), (False, 1.0)])
def test_verl_gets_advantages_per_token_by_the_estimators_name(norm_by_std: bool, scale: float) -> None:
    # Guided 1, 0: ±½ around the mean, std √½. Free 1, 1: 0, where a pooled baseline of prompt p would give 1 − ¾.
    # Prompt q has one rollout in each half: 0.
    rewards = torch.tensor([[0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.float32)
    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
    halves = [("p", True), ("p", True), ("p", False), ("p", False), ("q", True), ("q", False)]
    estimator = get_adv_estimator_fn("comprl_subgroup")
    advantages, returns = estimator(
        token_level_rewards=rewards,
        response_mask=mask,
        index=np.array([subgroup_uid(uid, guided) for uid, guided in halves]),
        config=AlgoConfig(norm_adv_by_std_in_grpo=norm_by_std),
    )
    half = 0.5 * scale
    expected = torch.tensor([[half, 0, half], [-half, -half, -half], [0] * 3, [0] * 3, [0] * 3, [0] * 3])
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected)


def test_without_a_config_advantages_are_divided_by_the_deviation() -> None:
    estimator = get_adv_estimator_fn("comprl_subgroup")
    advantages, _ = estimator(torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), [subgroup_uid("p", True)] * 2)
    assert advantages[0, 0].item() == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))


def test_a_rollout_with_several_outputs_counts_once_with_its_last_outcome() -> None:
    # Rollouts of the guided half: a with outputs of 0 and 1 (its last), b 0, c 0. Outcomes 1, 0, 0: mean ⅓, variance
    # (4/9 + 1/9 + 1/9)/2 = ⅓. Counted by output they would be 0, 1, 0, 0 with mean ¼.
    estimator = get_adv_estimator_fn("comprl_subgroup")
    index = [subgroup_uid("p", True, rollout) for rollout in ("a", "b", "a", "c")]
    rewards = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1], [0, 1]])
    advantages, _ = estimator(rewards, mask, index, AlgoConfig())
    up, down = (2 / 3) / (math.sqrt(1 / 3) + 1e-6), (-1 / 3) / (math.sqrt(1 / 3) + 1e-6)
    torch.testing.assert_close(advantages, torch.tensor([[up, 0], [down, down], [up, up], [0, down]]))
