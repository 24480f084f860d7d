"""Registers ``algorithm.adv_estimator=comprl_subgroup``: subgroup GRPO (Eq. 5) as an advantage estimator of verl.

verl passes an estimator the uid of each output's prompt and nothing else about the rollout. The uid therefore carries
the half and the rollout: whoever builds the batch sets it to ``subgroup_uid``, as our trainer does.
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
    """Return ``uid`` extended by the half and the id of a rollout.

    Args:
        uid: verl's uid of the prompt.
        guided: Whether the rollout is in the guided half.
        rollout: Id of the rollout, needed if rollouts have several outputs. Must not contain ``#``.
    """
    return f"{uid}#{'guided' if guided else 'free'}#{rollout}"


def split_subgroup_uid(uid: str) -> tuple[str, bool, str]:
    """Return prompt, half and rollout of a ``subgroup_uid``; a plain uid counts as free."""
    # From the right: verl's own uid may contain "#", the two parts that we append cannot.
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

    A rollout with several outputs counts once, with the outcome of its last output; all of them get its advantage.

    Args:
        token_level_rewards: Rewards per token, shape (outputs, length); their sum is the outcome.
        response_mask: 1 on tokens that the actor generated, same shape.
        index: ``subgroup_uid`` of each output.
        config: verl's ``algorithm`` config; ``norm_adv_by_std_in_grpo`` decides whether to divide by the deviation.
    """
    named = [split_subgroup_uid(uid) for uid in index]
    # One key per rollout; without a rollout id every output is a rollout of its own. Counted by output, a rollout with
    # several of them would enter the mean and the deviation of its subgroup several times.
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
