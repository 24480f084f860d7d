"""Registers the extractor's losses: ``policy_loss.loss_mode=comprl_cispo`` (Eq. 3) and ``comprl_cispo_fading``.

Both are verl's CISPO with clip metrics for each side: an extractor whose texts are used long after they were written
drifts to one side, and verl reports one number for both.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_cispo, register_policy_loss
from verl.utils.torch_functional import masked_mean

from verl_comprl.names import EXTRACTOR_LOSS, FADING_LOSS

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
    ratio = _ratio(log_prob, old_log_prob)
    sides = {
        "actor/ratio": ratio,
        "actor/clip_fraction_low": (ratio < 1 - config.clip_ratio_low).float(),
        "actor/clip_fraction_high": (ratio > 1 + config.clip_ratio_high).float(),
    }
    return loss, metrics | {name: masked_mean(value, response_mask).item() for name, value in sides.items()}


@register_policy_loss(FADING_LOSS)
def fading_cispo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the loss of ``comprl_cispo`` without the lower bound of the ratio where the advantage is negative.

    The bound keeps a failed text that the extractor would hardly write any more at ``1 − ε_lo`` of its weight, in every
    batch in which it is used. Here its weight falls with the ratio, while a useful text keeps the bound, which lets the
    extractor come back to it.
    """
    lowest = 1 - config.clip_ratio_low
    ratio = _ratio(log_prob, old_log_prob)
    # verl multiplies its clipped ratio, the lowest, by these weights: the product is the ratio itself.
    fading = torch.where((advantages < 0) & (ratio < lowest), ratio / lowest, torch.ones_like(ratio))
    return cispo_with_clip_metrics(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode,
        config,
        fading if rollout_is_weights is None else fading * rollout_is_weights,
    )


def _ratio(log_prob: torch.Tensor, old_log_prob: torch.Tensor) -> torch.Tensor:
    """Return ``ρ``, without a gradient and within the bound that verl uses."""
    return torch.exp((log_prob.detach() - old_log_prob).clamp(-20, 20))
