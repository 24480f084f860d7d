"""Subgroup GRPO (Eq. 4, 5): advantages computed separately for a prompt's rollouts with and without experience.

The guided half of the rollouts has retrieved experience in context, the free half has none. Owns the baseline, the
normalisation, the weights, and their division among several outputs of a rollout. ``rollout.guidance`` decides which
rollouts are guided.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
import torch

Array = TypeVar("Array", np.ndarray, torch.Tensor)


def _groups(keys: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the group index of every element, and the size and first element of every group."""
    index: dict[Hashable, int] = {}
    inverse = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
    _, first = np.unique(inverse, return_index=True)
    return inverse, np.bincount(inverse, minlength=len(index)), first


def _checked(prompt_ids: Sequence[Hashable], guided: Sequence[bool], count: int) -> list[tuple[Hashable, bool]]:
    if not len(prompt_ids) == len(guided) == count:
        raise ValueError(
            f"one value per rollout is needed, got {count} rewards, {len(prompt_ids)} prompt ids, {len(guided)} guided"
        )
    return [(prompt, bool(is_guided)) for prompt, is_guided in zip(prompt_ids, guided, strict=True)]


def subgroup_advantages(
    rewards: Array,
    prompt_ids: Sequence[Hashable],
    guided: Sequence[bool],
    *,
    norm_by_std: bool = True,
    eps: float = 1e-6,
) -> Array:
    """Return ``A_k = (r_k − mean_c) / (std_c + eps)`` inside every prompt's guided or free subgroup ``c`` (Eq. 5).

    The standard deviation is the unbiased one, as in verl's GRPO. A subgroup of equal rewards gets 0, and so does a
    subgroup of one (where verl's GRPO would return the reward itself).

    Args:
        rewards: Outcome of each rollout, shape (n,), array or tensor.
        prompt_ids: Prompt of each rollout, length n.
        guided: Whether each rollout is in the guided half, length n.
        norm_by_std: Divide by the standard deviation; without it only the mean is subtracted.
        eps: Added to the standard deviation.

    Returns:
        Advantages of the type and shape of ``rewards``.

    Raises:
        ValueError: If the three lengths differ or ``rewards`` is not one-dimensional.
    """
    if rewards.ndim != 1:
        raise ValueError(f"rewards must be one-dimensional, got shape {tuple(rewards.shape)}")
    plain = rewards.detach().cpu().double() if isinstance(rewards, torch.Tensor) else rewards
    values = np.asarray(plain, dtype=np.float64)
    inverse, sizes, first = _groups(_checked(prompt_ids, guided, len(values)))
    # Differences to the first member are exactly 0 for equal rewards. Subtracting the mean alone would leave rounding
    # errors, which the division by eps would amplify.
    shifted = values - values[first][inverse]
    centred = shifted - (np.bincount(inverse, weights=shifted, minlength=len(sizes)) / sizes)[inverse]
    if norm_by_std:
        variance = np.bincount(inverse, weights=centred**2, minlength=len(sizes)) / np.maximum(sizes - 1, 1)
        centred = centred / (np.sqrt(variance) + eps)[inverse]
    if isinstance(rewards, torch.Tensor):
        return torch.as_tensor(centred, dtype=rewards.dtype, device=rewards.device)
    return centred.astype(rewards.dtype if np.issubdtype(rewards.dtype, np.floating) else np.float64)


def subgroup_weights(prompt_ids: Sequence[Hashable], guided: Sequence[bool]) -> np.ndarray:
    """Return the weight ``½ · 1/K_c`` of each rollout in Eq. 5; if a prompt has one half only, that half has weight 1.

    Args:
        prompt_ids: Prompt of each rollout, length n.
        guided: Whether each rollout is in the guided half, length n.

    Returns:
        Weights, shape (n,), which sum to 1 over the rollouts of each prompt.
    """
    keys = _checked(prompt_ids, guided, len(prompt_ids))
    inverse, sizes, _ = _groups(keys)
    present = set(keys)
    halves = np.array([1 + ((prompt, not is_guided) in present) for prompt, is_guided in keys], dtype=np.float64)
    return 1.0 / (halves * sizes[inverse])


def output_shares(rollouts: Sequence[Hashable], tokens: Sequence[int]) -> np.ndarray:
    """Return each output's share of the tokens of its rollout.

    ``Σ share · (mean over its tokens)`` is then the mean over all tokens of the rollout, as in Eq. 5.

    Args:
        rollouts: Rollout of each output, length m; a rollout with several outputs appears several times.
        tokens: Tokens of each output that the actor generated, length m.

    Returns:
        Shares, shape (m,), which sum to 1 over the outputs of each rollout (to 0 if it has no tokens at all).
    """
    counts = np.asarray(tokens, dtype=np.float64)
    inverse, sizes, _ = _groups(rollouts)
    totals = np.bincount(inverse, weights=counts, minlength=len(sizes))[inverse]
    return np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)


def better_than_free(
    rewards: Sequence[float], prompt_ids: Sequence[Hashable], guided: Sequence[bool], *, of_guided: bool = True
) -> np.ndarray:
    """Return which rollouts of one half have a reward above the mean of their prompt's free half.

    A prompt without free rollouts has none. Self-distillation trains the actor to do the same without experience.

    Args:
        rewards: Outcome of each rollout, length n.
        prompt_ids: Prompt of each rollout, length n.
        guided: Whether each rollout is in the guided half, length n.
        of_guided: Which half: the guided one, or the free one itself.

    Returns:
        Booleans, shape (n,).
    """
    free: dict[Hashable, list[float]] = {}
    for (prompt, is_guided), reward in zip(_checked(prompt_ids, guided, len(rewards)), rewards, strict=True):
        if not is_guided:
            free.setdefault(prompt, []).append(reward)
    rows = zip(rewards, prompt_ids, guided, strict=True)
    better = [half == of_guided and prompt in free and reward > np.mean(free[prompt]) for reward, prompt, half in rows]
    return np.array(better, dtype=bool)
