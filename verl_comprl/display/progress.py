"""Progress interface through which the trainer reports to the terminal; by default it shows nothing."""

from collections.abc import Mapping

Metrics = dict[str, float]


class Progress:
    """Receives what happens in a run; every method does nothing."""

    def note(self, text: str) -> None:
        """Something has happened that the user should know."""

    def activity(self, text: str) -> None:
        """Something that takes a while has started."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """An evaluation has ended."""

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """An actor step has ended; ``metrics`` are all of that step."""

    def finish(self, metrics: Metrics, saved: Mapping[str, str]) -> None:
        """The run has ended regularly.

        Args:
            metrics: Totals of the run.
            saved: Path of each kind of result.
        """
