"""Draws the goal that a seed stands for.

Owns the ways to divide the goals between the splits, and upstream's frequencies: a goal with rare attributes is drawn
more often than one whose attributes many goals have.
"""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from env_adapters.dataset import SPLITS, split_of
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.shop import Shop

SPLIT_BY = ("product", "none", "goal")
"""By product: a fifth of the products is held out. None: both splits have all goals. By goal: 500 are held out."""

_EVALUATION = 500
_UPSTREAM_SEED = 233


class Draws:
    """Goals of a shop by seed.

    Attributes:
        goals: The goals by split.
    """

    def __init__(self, shop: Shop, split_by: str) -> None:
        """Divide the goals.

        Args:
            shop: The shop.
            split_by: One of ``SPLIT_BY``. With ``goal`` the goals of a split take turns, the first 500 of all in a
                fixed random order are held out; else they are drawn by weight.

        Raises:
            ValueError: If ``split_by`` is unknown, or a split has no goal.
        """
        if split_by not in SPLIT_BY:
            raise ValueError(f"unknown split_by {split_by!r}; known: {', '.join(SPLIT_BY)}")
        self.goals: dict[str, tuple[Goal, ...]] = dict(shop.goals)
        self._weights: dict[str, list[float]] = {}
        everything = sorted((goal for goals in shop.goals.values() for goal in goals), key=lambda goal: goal.task_id)
        if split_by == "goal":
            random.Random(_UPSTREAM_SEED).shuffle(everything)
            self.goals = dict(
                zip(SPLITS, (tuple(everything[_EVALUATION:]), tuple(everything[:_EVALUATION])), strict=True)
            )
        elif split_by == "none":
            self.goals = dict.fromkeys(SPLITS, tuple(everything))
        if not self.goals["train"]:
            raise ValueError(
                f"the shop has only {len(everything)} goals; with split_by='goal' {_EVALUATION} are held out"
            )
        if split_by != "goal":
            weight = dict(zip((goal.task_id for goal in everything), weights(everything), strict=True))
            for split, goals in self.goals.items():
                self._weights[split] = list(accumulate(weight[goal.task_id] for goal in goals))

    def goal_of(self, seed: int) -> Goal:
        """Return the goal of an environment seed."""
        split, number = split_of(seed)
        goals = self.goals[split]
        if split not in self._weights:
            return goals[number % len(goals)]
        sums = self._weights[split]
        return goals[min(bisect(sums, random.Random(number).random() * sums[-1]), len(goals) - 1)]


def weights(goals: Sequence[Goal]) -> list[float]:
    """Return how often each goal is drawn, as upstream: the mean of 1 / (number of goals with it) over its attributes.

    Human goals weigh 1.
    """
    counts = Counter(attribute for goal in goals for attribute in goal.attributes)
    return [
        1.0 if goal.human else sum(1 / counts[attribute] for attribute in goal.attributes) / len(goal.attributes)
        for goal in goals
    ]


@lru_cache(maxsize=4)  # a shop is shared by all environments of a process, and so are its draws
def draws_of(shop: Shop, split_by: str) -> Draws:
    """Return the goals of a shop by seed; see ``Draws``."""
    return Draws(shop, split_by)
