"""``policy_loss.loss_mode=comprl_cispo``: verl's own CISPO (Eq. 3), which also says on which side it clips.

An extractor whose texts are used long after they were written drifts to one side; verl reports both as one number.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_cispo, register_policy_loss
from verl.utils.torch_functional import masked_mean

from verl_comprl.names import EXTRACTOR_LOSS

_verls_cispo: Any = compute_policy_loss_cispo  # its decorator hides the arguments from checkers


@register_policy_loss(EXTRACTOR_LOSS)
def cispo_with_both_sides(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return what verl's ``cispo`` returns, with the mean ratio and the share of tokens clipped below and above."""
    loss, metrics = _verls_cispo(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    ratio = torch.exp((log_prob.detach() - old_log_prob).clamp(-20, 20))  # as verl bounds it
    sides = {
        "actor/ratio": ratio,
        "actor/clip_fraction_low": (ratio < 1 - config.clip_ratio_low).float(),
        "actor/clip_fraction_high": (ratio > 1 + config.clip_ratio_high).float(),
    }
    return loss, metrics | {name: masked_mean(value, response_mask).item() for name, value in sides.items()}
