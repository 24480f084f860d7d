"""Terminal display of a run: a live view on a terminal, one line per step anywhere else, a summary at the end."""

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TextIO, cast

from rich.console import Console
from rich.live import Live

from verl_comprl.display.announcer import announce, start_announcer
from verl_comprl.display.live_view import LiveView
from verl_comprl.display.printable import printable
from verl_comprl.display.progress import Metrics, Progress
from verl_comprl.display.run_state import RunState
from verl_comprl.display.summary import results, summary
from verl_comprl.display.terminal_file import TerminalFile
from verl_comprl.display.units import duration


def new_console() -> Console:
    """Return a console for the current standard output, also if that is redirected later."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What others print, with COMPRL_VERBOSE in a pipe, must not stay in its buffer, past which our lines go.
        sys.stdout.reconfigure(line_buffering=True)
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else 120  # rich takes 80 where it cannot ask a terminal
    # Not left to rich: FORCE_COLOR, which continuous integration sets, would make it take a pipe for a terminal.
    return Console(
        file=cast(TextIO, TerminalFile(sys.stdout)),
        width=width,
        force_terminal=is_terminal,
        highlight=False,
        emoji=False,
        soft_wrap=True,
    )


class Display(Progress):
    """Shows the run."""

    def __init__(
        self, console: Console | None = None, *, live: bool = True, clean: Callable[[str], str] = lambda text: text
    ) -> None:
        """Write to ``console``.

        Args:
            console: By default that of :func:`new_console`.
            live: Whether a live view may be used; libraries that print to the same terminal would tear it apart.
            clean: Takes secrets out of what others say: notes and errors.
        """
        self._clean = clean
        self._console = console or new_console()
        self._state = RunState()
        self._evaluation_line = ""
        self._live: Live | None = None
        start_announcer()
        if live and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                LiveView(self._state),
                console=self._console,
                refresh_per_second=2,
                transient=True,
                redirect_stdout=False,  # verl's output, see redirect.py
                redirect_stderr=False,
            )

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        """Show ``text`` and count the time as that of phase ``name``."""
        self.activity(text)
        if self._live is None:
            self.note(f"{text} …")
        started = time.perf_counter()
        yield
        self._state.seconds[name] = time.perf_counter() - started
        self.note(f"{text}: done after {duration(self._state.seconds[name])}")

    def note(self, text: str) -> None:
        """Print a line as it is, but for what a terminal would obey, above the live view."""
        self._console.print(printable(self._clean(text)), markup=False)

    def announce(self, text: str) -> None:
        """Say something now or a little later, without waiting: for signal handlers and the watchdog."""
        announce(partial(Display.note, self), text)

    def fail(self, *errors: str) -> None:
        """Print errors, each of which may have several lines; the live view ends."""
        self.close()
        for error in errors:
            self._console.print("error:", style="bold red", end=" ")
            self.note(error)

    def close(self) -> None:
        """End the live view."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def activity(self, text: str) -> None:
        """Show what the run does now; only a live view has a place for it."""
        self._state.record_activity(text)
        if self._live is not None:
            self._live.start()

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Show an evaluation."""
        self._state.evaluations[step] = metrics
        line = f"evaluation {self._state.evaluation_name(step)} · {self._state.evaluation(step)}"
        if self._live is None and self._state.steps_here:
            self._evaluation_line = line  # verl evaluates before it reports the step
        else:
            self.note(line)

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """Show a step."""
        self._state.record_step(step, total, metrics)
        if self._live is None:
            self.note(self._state.step_line())
            if self._evaluation_line:
                self.note(self._evaluation_line)
            self._evaluation_line = ""

    def finish(self, metrics: Metrics, saved: Mapping[str, str]) -> None:
        """Print the summary."""
        self.close()
        self._console.print(summary(self._state, metrics))
        self.note(results(saved))
