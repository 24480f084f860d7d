"""Terminal display of a sweep: the present run as a live view on a terminal, and one line per run that has ended."""

from collections.abc import Mapping
from numbers import Real

from rich.console import Console

from verl_comprl.display.progress import Metrics
from verl_comprl.display.terminal import Display, new_console
from verl_comprl.display.units import duration


class RunDisplay(Display):
    """Shows a run of a sweep while it runs, on a terminal only; what it would say goes to the run's log."""

    def __init__(self, console: Console | None = None, *, live: bool = True) -> None:
        """Write to ``console``; the arguments are those of :class:`Display`."""
        super().__init__(console, live=live)
        self._totals: Metrics = {}

    def resume(self, metrics: Metrics, evaluations: Mapping[int, Metrics]) -> None:
        """Begin with what an earlier part of the run has reached: there may be no step left to play.

        Args:
            metrics: Of its last step.
            evaluations: Its evaluations, by step.
        """
        self._state.metrics, self._state.evaluations = metrics, dict(evaluations)

    def note(self, text: str) -> None:
        """Print to standard output, which is the run's log meanwhile."""
        print(text)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Remember an evaluation."""
        self._state.evaluations[step] = metrics
        self.note(f"evaluation {self._state.evaluation_name(step)} · {self._state.evaluation(step)}")

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """Remember a step."""
        self._state.record_step(step, total, metrics)
        self.note(self._state.step_line())

    def finish(self, metrics: Metrics, saved: Mapping[str, str]) -> None:
        """End the live view."""
        self.close()
        self._totals = metrics

    def metrics(self) -> Metrics:
        """Return the run's last metrics: of its last step, its last evaluation, and its totals."""
        evaluations = self._state.evaluations
        last = evaluations[max(evaluations)] if evaluations else {}
        found = self._state.metrics | last | self._totals
        return {name: float(value) for name, value in found.items() if isinstance(value, Real)}

    def outcome(self) -> str:
        """Return in a few words what the run has reached, and how long its start took."""
        evaluations = self._state.evaluations
        parts = [self._state.evaluation(max(evaluations))] if evaluations else []
        if not evaluations and self._state.metrics:
            parts = [f"success {self._state.success()}"]
        if "start" in self._state.seconds:
            parts.append(f"start {duration(self._state.seconds['start'])}")
        return " · ".join(parts)


class SweepDisplay:
    """Prints a line for each run."""

    def __init__(self, total: int, console: Console | None = None, *, live: bool = True) -> None:
        """Show ``total`` runs on ``console``; the other arguments are those of :class:`Display`."""
        self._total, self._live = total, live
        self._console = console or new_console()
        self._lines = Display(self._console, live=False)

    def run(self) -> RunDisplay:
        """Return a display for the run that begins."""
        return RunDisplay(self._console, live=self._live)

    def note(self, text: str) -> None:
        """Print a line."""
        self._lines.note(text)

    def ended(self, number: int, name: str, status: str, seconds: float, text: str) -> None:
        """Print the line of a run.

        Args:
            number: Its number, from 1.
            name: Its name.
            status: How it has ended.
            seconds: How long it took.
            text: What else there is to say.
        """
        after = f" after {duration(seconds)}" if seconds else ""
        self.note(f"run {number}/{self._total} {name}: {status}{after}" + (f" · {text}" if text else ""))
