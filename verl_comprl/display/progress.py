"""What a user sees of a run: nothing by default; the launcher puts a display in its place."""

from collections.abc import Mapping

Metrics = dict[str, float]


class Progress:
    """Receives what happens; every method does nothing."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """An evaluation has ended."""

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """An actor step has ended; ``metrics`` are all of the step's."""

    def finish(self, metrics: Metrics, saved: Mapping[str, str]) -> None:
        """The run has ended regularly; ``metrics`` are the totals, ``saved`` names what lies where."""
