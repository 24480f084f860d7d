"""Registers ``policy_loss.loss_mode=comprl_cispo``: verl's CISPO loss (Eq. 3) with clip metrics for each side.

An extractor whose texts are used long after they were written drifts to one side; verl reports one number for both.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_cispo, register_policy_loss
from verl.utils.torch_functional import masked_mean

from verl_comprl.names import EXTRACTOR_LOSS

_verl_cispo: Any = compute_policy_loss_cispo  # its decorator hides the parameters from type checkers


@register_policy_loss(EXTRACTOR_LOSS)
def cispo_with_clip_metrics(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return verl's ``cispo`` loss and metrics, plus the mean ratio and the share of tokens clipped low and high."""
    loss, metrics = _verl_cispo(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    ratio = torch.exp((log_prob.detach() - old_log_prob).clamp(-20, 20))  # the bound that verl uses
    sides = {
        "actor/ratio": ratio,
        "actor/clip_fraction_low": (ratio < 1 - config.clip_ratio_low).float(),
        "actor/clip_fraction_high": (ratio > 1 + config.clip_ratio_high).float(),
    }
    return loss, metrics | {name: masked_mean(value, response_mask).item() for name, value in sides.items()}
