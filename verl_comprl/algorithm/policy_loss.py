"""Reference implementation of the CISPO loss (Eq. 3).

Training uses verl's own ``cispo``; a test proves that verl computes the same loss when it is given the log-probs that
were stored when the text was generated.
"""

import torch


def cispo_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    fading: bool = False,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return ``−Σ_i Σ_t sg(clip(ρ_it, 1−ε_lo, 1+ε_hi)) · Â_i · log π_φ(m_it) / Σ_i |m_i|`` (Eq. 3).

    Args:
        log_prob: Log-probs under the model being trained, shape (batch, length), in nats.
        old_log_prob: Log-probs of the generator, stored when the text was written, same shape.
        advantages: ``Â_i`` per token (or (batch, 1)).
        response_mask: 1 for tokens of the response, 0 for padding, same shape.
        clip_low: ``ε_lo``.
        clip_high: ``ε_hi``.
        fading: No lower bound where ``Â_i < 0``: a failed text's weight falls with its probability (not in the paper).

    Returns:
        The loss (a scalar) and the metrics ``ratio``, ``clip_fraction_low`` and ``clip_fraction_high`` (token means).
    """
    mask = response_mask.to(log_prob.dtype)
    tokens = mask.sum()
    # Padded positions may hold anything, infinities included, and 0 * inf is NaN.
    kept = response_mask.bool()
    log_prob = torch.where(kept, log_prob, 0.0)
    ratio = torch.exp(torch.where(kept, log_prob.detach() - old_log_prob, 0.0))
    lowest = torch.where(advantages < 0, 0.0, 1 - clip_low) if fading else 1 - clip_low
    clipped = torch.maximum(ratio, torch.as_tensor(lowest)).clamp(max=1 + clip_high)
    loss = -(clipped * torch.where(kept, advantages, 0.0) * log_prob).sum() / tokens
    metrics = {
        "ratio": (ratio * mask).sum() / tokens,
        "clip_fraction_low": ((ratio < 1 - clip_low) * mask).sum() / tokens,
        "clip_fraction_high": ((ratio > 1 + clip_high) * mask).sum() / tokens,
    }
    return loss, {name: value.item() for name, value in metrics.items()}
