"""Success of an entry's episodes against the free half of the same prompts."""

from dataclasses import dataclass, field
from math import hypot

from verl_comprl.algorithm.interval import wilson_interval

MINIMUM = 3
"""Guided episodes from which on a gain has an interval."""


@dataclass
class Tally:
    """Episodes and how many of them succeeded."""

    count: int = 0
    successes: int = 0

    def add(self, success: bool) -> None:
        """Count an episode."""
        self.count += 1
        self.successes += success

    @property
    def rate(self) -> float | None:
        """Success rate, or None without episodes."""
        return self.successes / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the rate, or None without episodes."""
        return wilson_interval(self.successes, self.count) if self.count else None


@dataclass
class Comparison:
    """Guided episodes and, for each, the free ones of its prompt.

    Prompts differ in difficulty, so each guided episode is compared with the free rate of its own prompt: the expected
    success is the mean of these rates. Guided episodes whose prompt has no free one count in ``guided`` only.
    """

    guided: Tally = field(default_factory=Tally)
    matched: Tally = field(default_factory=Tally)
    """Guided episodes whose prompt has free ones."""
    expected: float = 0.0
    """Sum of the free rates of their prompts."""
    prompts: dict[str, int] = field(default_factory=dict)
    """Free episodes of each of these prompts."""

    def add(self, success: bool, prompt: str, free: Tally | None) -> None:
        """Count a guided episode; ``free`` are the free ones of its prompt."""
        self.guided.add(success)
        if free is not None and free.rate is not None:
            self.matched.add(success)
            self.expected += free.rate
            self.prompts[prompt] = free.count

    @property
    def free_rate(self) -> float | None:
        """Mean success of the free halves."""
        return self.expected / self.matched.count if self.matched.count else None

    @property
    def free_count(self) -> int:
        """Free episodes, each once."""
        return sum(self.prompts.values())

    @property
    def free_interval(self) -> tuple[float, float] | None:
        """95 % interval of the free rate."""
        rate = self.free_rate
        return None if rate is None else wilson_interval(min(rate, 1.0) * self.free_count, self.free_count)

    @property
    def gain(self) -> float | None:
        """Difference of the rates."""
        with_rate, free = self.matched.rate, self.free_rate
        return None if with_rate is None or free is None else with_rate - free

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """95 % interval of the gain (Newcombe's, from the Wilson intervals of both rates), of ``MINIMUM`` uses or more.

        With fewer it would be too narrow: one failure against four successes would count as proof.
        """
        gain, with_interval, free_interval = self.gain, self.matched.interval, self.free_interval
        if self.matched.count < MINIMUM or gain is None or with_interval is None or free_interval is None:
            return None
        with_rate, free = self.matched.successes / self.matched.count, self.expected / self.matched.count
        below = hypot(with_rate - with_interval[0], free_interval[1] - free)
        above = hypot(with_interval[1] - with_rate, free - free_interval[0])
        return max(-1.0, gain - below), min(1.0, gain + above)
