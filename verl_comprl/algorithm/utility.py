"""Rewards of experience entries from episode outcomes, and the extractor's advantages and weights (Eq. 3, 7, 8)."""

from collections.abc import Iterable, Sequence

import numpy as np


def outcome_reward(success: bool) -> float:
    """Return the reward of one use of an entry: +1 if the guided episode succeeded, else −1."""
    return 1.0 if success else -1.0


CRITIC_SCORES = {"accept": 1.0, "refine": 0.5, "reject": 0.0}
"""``s`` of Eq. 8: the score of the verdict that the actor, as critic, gives on a retrieved text."""


def relative_reward(success: bool, free_outcomes: Sequence[bool]) -> float:
    """Return the reward of one use relative to the free half: the outcome minus the half's mean outcome, in [−2, 2].

    The paper found this to be worse than the outcome alone.

    Args:
        success: Outcome of the guided episode.
        free_outcomes: Outcomes of free episodes; if empty, the baseline is 0.
    """
    baseline = sum(map(outcome_reward, free_outcomes)) / len(free_outcomes) if free_outcomes else 0.0
    return outcome_reward(success) - baseline


def mean_utilities(uses: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Average rewards per generation record: one sample per unique record and collection step.

    Args:
        uses: Pairs (record id, reward of one use).

    Returns:
        Mean reward of every record, in order of first use.
    """
    rewards: dict[str, list[float]] = {}
    for record_id, reward in uses:
        rewards.setdefault(record_id, []).append(reward)
    return {record_id: float(np.mean(values)) for record_id, values in rewards.items()}


def training_weight(step: int, last_trained: int | None, train_count: int, *, alpha: float, cooldown: float) -> float:
    """Return ``w = 0 if (t − t_last) < δ, else (1 + c_train)^(−α)`` (Eq. 7).

    Args:
        step: ``t``, the actor step at which the sample is trained on.
        last_trained: ``t_last``, the actor step at which the record was last trained on; ``None`` if it never was.
        train_count: ``c_train``, the number of times the record was trained on.
        alpha: ``α`` ≥ 0.
        cooldown: ``δ`` ≥ 0, in actor steps.

    Returns:
        The weight, in [0, 1].
    """
    if last_trained is not None and step - last_trained < cooldown:
        return 0.0
    return float((1 + train_count) ** -alpha)


def extractor_advantages(
    rewards: Sequence[float], weights: Sequence[float], kinds: Sequence[str], failed: Sequence[bool]
) -> np.ndarray:
    """Return ``Â_i = w_i · (r_i − b_i)`` of a batch (Eq. 3, 7), with a baseline per kind of call.

    ``b_i`` of an outcome is the mean reward of the batch's outcomes of its kind; format failures do not enter it.
    ``b_i`` of a format failure is the same mean, but at least 0, the middle of success and failure. A reward below 0
    then gives a negative advantage even if all outcomes of the batch are −1.

    Args:
        rewards: ``r_i``.
        weights: ``w_i``.
        kinds: Kind of call of each sample.
        failed: Whether each sample is a format failure.

    Returns:
        The advantages, shape (n,).
    """
    values, kind, is_failed = np.asarray(rewards, np.float64), np.asarray(kinds), np.asarray(failed, bool)
    baselines = np.zeros_like(values)
    for name in set(kinds):
        outcomes = values[(kind == name) & ~is_failed]
        mean = outcomes.mean() if len(outcomes) else 0.0
        baselines[kind == name] = mean
        baselines[(kind == name) & is_failed] = max(mean, 0.0)
    return (values - baselines) * np.asarray(weights, dtype=np.float64)


def gini(counts: Sequence[int]) -> float:
    """Return the Gini coefficient of counts ≥ 0: 0 if all are equal (or all 0), near 1 if one count is all of them."""
    values = np.sort(np.asarray(counts, dtype=np.float64))
    total = values.sum()
    if not total:
        return 0.0
    ranks = np.arange(1, len(values) + 1)
    return float(2 * (ranks * values).sum() / (len(values) * total) - (len(values) + 1) / len(values))
