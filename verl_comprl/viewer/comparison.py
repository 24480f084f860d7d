"""Success of an entry's episodes against the free half of the same prompts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import Any, Self

from verl_comprl.algorithm.interval import pooled_interval

MINIMUM = 3
"""Guided episodes from which on a gain has an interval."""

Outcome = tuple[str, bool]
"""Prompt of an episode, and whether it succeeded."""


@dataclass
class Tally:
    """Episodes and how many of them succeeded."""

    count: int = 0
    successes: int = 0

    def add(self, success: bool) -> None:
        """Count an episode."""
        self.count += 1
        self.successes += success


@dataclass
class Comparison:
    """Guided episodes and, for each, the free ones of its prompt.

    Prompts differ in difficulty, so each guided episode is compared with the free rate of its own prompt: the expected
    success is the mean of these rates. Intervals know that episodes of one prompt tend to end alike.
    """

    guided: list[Outcome] = field(default_factory=list)
    free: dict[str, Tally] = field(default_factory=dict)
    """Free episodes of those of their prompts that have some."""

    @classmethod
    def pooled(cls, parts: Iterable[Self]) -> Self:
        """Return the comparison of the episodes of several."""
        pooled = cls()
        for part in parts:
            pooled.guided += part.guided
            pooled.free |= part.free
        return pooled

    def add(self, success: bool, prompt: str, free: Tally | None) -> None:
        """Count a guided episode; ``free`` are the free ones of its prompt."""
        self.guided.append((prompt, success))
        if free is not None and free.count:
            self.free[prompt] = free

    @property
    def matched(self) -> list[Outcome]:
        """Guided episodes whose prompt has free ones."""
        return [(prompt, success) for prompt, success in self.guided if prompt in self.free]

    @property
    def rate(self) -> float | None:
        """Success of all guided episodes, or None without one."""
        return _rate(self.guided)

    @property
    def compared_rate(self) -> float | None:
        """Success to show next to the free rate: that of the matched episodes, or of all if none is matched."""
        return _rate(self.matched or self.guided)

    @property
    def compared_interval(self) -> tuple[float, float] | None:
        """95 % interval of :attr:`compared_rate`."""
        outcomes = self.matched or self.guided
        return pooled_interval(outcomes) if outcomes else None

    @property
    def free_rate(self) -> float | None:
        """Mean success of the free halves, each as often as an episode with its prompt was guided."""
        rates = [free.successes / free.count for free in (self.free[prompt] for prompt, _ in self.matched)]
        return sum(rates) / len(rates) if rates else None

    @property
    def free_count(self) -> int:
        """Free episodes, each once."""
        return sum(free.count for free in self.free.values())

    @property
    def free_interval(self) -> tuple[float, float] | None:
        """95 % interval of the free rate."""
        outcomes = [
            (prompt, number < free.successes) for prompt, free in self.free.items() for number in range(free.count)
        ]
        uses = Counter(prompt for prompt, _ in self.matched)
        return pooled_interval(outcomes, self.free_rate, uses) if outcomes else None

    @property
    def gain(self) -> float | None:
        """Difference of the rates."""
        free = self.free_rate
        return None if free is None else (_rate(self.matched) or 0.0) - free

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """95 % interval of the gain (Newcombe's, from the intervals of both rates), of ``MINIMUM`` uses or more.

        With fewer it would be too narrow: one failure against four successes would count as proof.
        """
        rate, with_interval = self.compared_rate, self.compared_interval
        free, free_interval = self.free_rate, self.free_interval
        if len(self.matched) < MINIMUM or rate is None or with_interval is None or free is None or not free_interval:
            return None
        below = hypot(rate - with_interval[0], free_interval[1] - free)
        above = hypot(with_interval[1] - rate, free - free_interval[0])
        return max(-1.0, rate - free - below), min(1.0, rate - free + above)

    def columns(self) -> dict[str, Any]:
        """Return what a list shows of it, by column."""
        low, high = self.gain_interval or (None, None)
        return {
            "uses": len(self.guided),
            "rate": self.rate,
            "compared": self.compared_rate,
            "free": self.free_rate,
            "gain": self.gain,
            "gain_low": low,
            "gain_high": high,
        }

    def details(self) -> dict[str, Any]:
        """Return what else there is to show of it."""
        return {
            "interval": self.compared_interval,
            "matched": len(self.matched),
            "free_count": self.free_count,
            "free_interval": self.free_interval,
        }


def _rate(outcomes: Sequence[Outcome]) -> float | None:
    return sum(success for _, success in outcomes) / len(outcomes) if outcomes else None
