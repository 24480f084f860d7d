"""Decides which work takes too long, when to say so again, and what hangs. Pure: ages come in, findings go out."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

REMEMBERED = 16
"""Durations of a kind of work that are kept."""


class Finding(NamedTuple):
    """Something to say about a kind of work."""

    what: str
    seconds: float
    """Its age; if it has ended, when it was last seen."""
    limit: float
    ended: bool
    """Whether it has ended, after it was found to take too long."""


@dataclass
class _Late:
    limit: float
    next: float


class Watchdog:
    """Compares ages of work with limits: a fixed one, or a multiple of how long that kind of work takes otherwise."""

    def __init__(self, after: float, factor: float, end_after: float = 0.0) -> None:
        """Know no work yet.

        Args:
            after: Seconds below which nothing is too long.
            factor: Multiple of the median of earlier durations below which nothing is too long either.
            end_after: Seconds beyond that limit after which work that does not get on hangs; 0: never.
        """
        self._after, self._factor, self._end_after = after, factor, end_after
        self._seen: dict[str, float] = {}
        self._late: dict[str, _Late] = {}
        self._durations: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def look(self, ages: Mapping[str, float]) -> list[Finding]:
        """Return what is to be said now: once at the limit, then whenever the age has doubled, and at the end.

        Args:
            ages: Seconds of each kind of work that is under way; of several of a kind, those of the oldest.
        """
        findings = []
        for what, before in self._seen.items():
            if ages.get(what, -1.0) < before:  # it ended; perhaps another one has begun
                self._durations[what].append(before)
                if late := self._late.pop(what, None):
                    findings.append(Finding(what, before, late.limit, ended=True))
        for what, seconds in ages.items():
            late = self._late.get(what)
            limit = late.limit if late else self._limit(what)
            if seconds >= (late.next if late else limit):
                self._late[what] = _Late(limit, 2 * seconds)
                findings.append(Finding(what, seconds, limit, ended=False))
        self._seen = dict(ages)
        return findings

    def hung(self, stalled: Mapping[str, float]) -> Finding | None:
        """Return work that hangs, if there is any among what has been found to take too long.

        Args:
            stalled: Seconds for which each kind of work has not got on.
        """
        if not self._end_after:
            return None
        for what, seconds in stalled.items():
            late = self._late.get(what)
            if late and seconds >= late.limit + self._end_after:
                return Finding(what, seconds, late.limit, ended=False)
        return None

    def _limit(self, what: str) -> float:
        durations = self._durations[what]
        return max(self._after, self._factor * median_low(durations)) if durations else self._after
