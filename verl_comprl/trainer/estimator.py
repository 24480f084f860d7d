"""``algorithm.adv_estimator=comprl_subgroup``: subgroup GRPO (Eq. 5) as verl's advantage estimator.

verl hands an estimator the prompt's uid and nothing else about a rollout, so the half travels in the uid: whoever
builds the batch writes :func:`subgroup_uid`. Our trainer does; another pipeline can do the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

from verl_comprl.algorithm.advantage import subgroup_advantages
from verl_comprl.plugin import ADVANTAGE_ESTIMATOR

_GUIDED, _FREE = "#guided", "#free"


def subgroup_uid(uid: str, guided: bool) -> str:
    """Return ``uid`` with the half of the rollout in it."""
    return uid + (_GUIDED if guided else _FREE)


def split_subgroup_uid(uid: str) -> tuple[str, bool]:
    """Return the prompt's uid and whether the rollout is guided; a plain uid counts as free."""
    if uid.endswith(_GUIDED):
        return uid.removesuffix(_GUIDED), True
    return uid.removesuffix(_FREE), False


@register_adv_est(ADVANTAGE_ESTIMATOR)
def subgroup_estimator(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns, each of shape (rollouts, length): the outcome's advantage on every actor token.

    Args:
        token_level_rewards: Rewards per token; their sum is the outcome, shape (rollouts, length).
        response_mask: 1 on tokens that the actor generated, same shape.
        index: :func:`subgroup_uid` of each rollout.
        config: verl's ``algorithm`` config; ``norm_adv_by_std_in_grpo`` decides whether to divide by the deviation.
    """
    prompts, guided = zip(*map(split_subgroup_uid, index), strict=True)
    norm_by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    advantages = subgroup_advantages(token_level_rewards.sum(dim=-1), prompts, guided, norm_by_std=norm_by_std)
    per_token = advantages.unsqueeze(-1) * response_mask
    return per_token, per_token
