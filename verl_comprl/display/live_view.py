"""Live view of a run on a terminal: a progress bar and the latest numbers."""

import time

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from verl_comprl.display.run_state import RunState
from verl_comprl.display.units import duration


class LiveView:
    """Renders a :class:`RunState`, each time with the current time."""

    def __init__(self, state: RunState) -> None:
        """Show ``state``, which may change afterwards."""
        self._state = state

    def __rich__(self) -> RenderableType:
        """Return the view."""
        state, now = self._state, time.perf_counter()
        activity = f"{state.activity} ({duration(now - state.activity_started)})"
        if not state.total:
            return activity
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            f"step {state.step}/{state.total}", ProgressBar(state.total, state.step, width=30), self._times(now)
        )
        rows = Table.grid(padding=(0, 2))
        rows.add_row("success", state.success())
        if state.evaluations:
            latest = max(state.evaluations)
            rows.add_row("evaluation", f"{state.evaluation(latest)} ({state.evaluation_name(latest)})")
        if state.has_experience:
            rows.add_row("bank", state.bank())
            rows.add_row("extractor", state.extractor())
        rows.add_row("now", activity)
        return Group(bar, rows)

    def _times(self, now: float) -> str:
        state = self._state
        left = (state.total - state.step) * state.seconds_per_step
        times = [f"{duration(state.seconds_per_step)} per step", f"running for {duration(now - state.started)}"]
        return " · ".join([*times, f"about {duration(left)} left"])
