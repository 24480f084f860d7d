"""``algorithm.adv_estimator=comprl_subgroup``: subgroup GRPO (Eq. 5) as verl's advantage estimator.

verl hands an estimator the prompt's uid and nothing else about a rollout, so the half and the rollout travel in it:
whoever builds the batch writes :func:`subgroup_uid`. Our trainer does; another pipeline can do the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from verl_comprl.algorithm.advantage import subgroup_advantages
from verl_comprl.names import ADVANTAGE_ESTIMATOR

_HALVES = {"guided": True, "free": False}


def subgroup_uid(uid: str, guided: bool, rollout: str | int = "") -> str:
    """Return ``uid`` with the half of a rollout in it, and which one it is.

    Args:
        uid: The prompt's.
        guided: The rollout's half.
        rollout: Needed where rollouts have several outputs: those of one rollout have the same. May not contain ``#``.
    """
    return f"{uid}#{'guided' if guided else 'free'}#{rollout}"


def split_subgroup_uid(uid: str) -> tuple[str, bool, str]:
    """Return prompt, half and rollout of a :func:`subgroup_uid`; a plain uid counts as free."""
    prompt, *half = uid.rsplit("#", 2)
    if len(half) == 2 and half[0] in _HALVES:
        return prompt, _HALVES[half[0]], half[1]
    return uid, False, ""


@register_adv_est(ADVANTAGE_ESTIMATOR)
def subgroup_estimator(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns, each of shape (outputs, length): the outcome's advantage on every actor token.

    A rollout with several outputs counts once, with the outcome of its last one; its advantage goes to all of them.

    Args:
        token_level_rewards: Rewards per token; their sum is the outcome, shape (outputs, length).
        response_mask: 1 on tokens that the actor generated, same shape.
        index: :func:`subgroup_uid` of each output.
        config: verl's ``algorithm`` config; ``norm_adv_by_std_in_grpo`` decides whether to divide by the deviation.
    """
    named = [split_subgroup_uid(uid) for uid in index]
    keys = [name if name[2] else (*name, row) for row, name in enumerate(named)]
    last = {key: row for row, key in enumerate(keys)}
    position = {key: number for number, key in enumerate(last)}
    rows = list(last.values())
    outcomes = token_level_rewards.sum(dim=-1)[torch.tensor(rows)]
    norm_by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    advantages = subgroup_advantages(
        outcomes, [named[row][0] for row in rows], [named[row][1] for row in rows], norm_by_std=norm_by_std
    )
    of_row = torch.as_tensor(np.array([position[key] for key in keys], dtype=np.int64))
    per_token = advantages[of_row].unsqueeze(-1) * response_mask
    return per_token, per_token
