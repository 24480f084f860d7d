"""What a user watches: a progress line per step, and at the end a table of what happened."""

import io
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from verl_comprl.display.progress import Metrics, Progress

_PHASES = {
    "rollout": "timing_s/gen",
    "log-probs": "timing_s/old_log_prob",
    "actor update": "timing_s/update_actor",
    "weight sync": "timing_s/update_weights",
    "evaluation": "timing_s/testing",
    "checkpoint": "timing_s/save_checkpoint",
}


class _MetricsOnly(io.TextIOBase):
    """A standard output that lets verl's metrics lines through and writes everything else to a file."""

    def __init__(self, console: TextIO, log: TextIO) -> None:
        self._console, self._log, self._line = console, log, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            print(line, file=self._console if line.startswith("step:") else self._log, flush=True)
        return len(text)


@contextmanager
def redirect_verl_output(file: Path) -> Iterator[None]:
    """Send what verl prints to ``file``, except its metrics lines (``step:…``), which are the run's own output."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log, redirect_stdout(_MetricsOnly(sys.stdout, log)):
        yield


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


class Display(Progress):
    """Draws the run on the terminal; on something else than a terminal it prints one line per step."""

    def __init__(self, console: Console | None = None) -> None:
        """Draw on ``console`` (standard output by default)."""
        # Bound to the stream of now: what verl prints may be redirected later.
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        self._seconds: dict[str, float] = {}
        self._evaluations: dict[int, Metrics] = {}
        self._last: Metrics = {}
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase that is not a step's."""
        self.note(f"{name} …")
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started
        self.note(f"{name}: {self._seconds[name]:.0f} s")

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text)

    def fail(self, text: str) -> None:
        """Print an error."""
        self._console.print(f"[bold red]error:[/] {text}")

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Remember and print an evaluation."""
        self._evaluations[step] = metrics
        self.note(
            f"evaluation after step {step}: success {_number(metrics.get('comprl/eval/success_with'))} "
            f"with experience, {_number(metrics.get('comprl/eval/success_without'))} without"
        )

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """Advance the bar."""
        self._last = metrics
        for phase, key in _PHASES.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + float(metrics.get(key, 0.0))
        text = (
            f"guided {_number(metrics.get('comprl/guided/success'))} "
            f"free {_number(metrics.get('comprl/free/success'))} "
            f"bank {metrics.get('comprl/bank/size', 0):.0f} "
            f"extractor updates {metrics.get('comprl/extractor/updates', 0):.0f}"
        )
        if self._evaluations:
            latest = self._evaluations[max(self._evaluations)]
            text += (
                f" eval {_number(latest.get('comprl/eval/success_with'))}/"
                f"{_number(latest.get('comprl/eval/success_without'))}"
            )
        if not self._console.is_terminal:
            self.note(f"step {step}/{total} {text}")
            return
        if self._bar is None:
            columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, TextColumn("{task.description}"), console=self._console)
            self._bar.add_task(text, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=step, description=text)

    def finish(self, metrics: Metrics, saved: Mapping[str, str]) -> None:
        """Print the table and where things are."""
        if self._bar is not None:
            self._bar.stop()
        table = Table(title="Complementary RL", show_header=False)
        for step, evaluation in sorted(self._evaluations.items()):
            if step in (min(self._evaluations), max(self._evaluations)):
                values = (evaluation.get(f"comprl/eval/success_{arm}") for arm in ("with", "without"))
                table.add_row(f"success after step {step}", "with {} · without {}".format(*map(_number, values)))
        if "comprl/bank/size" in metrics:
            _experience_rows(table, metrics)
        self._seconds["extractor updates"] = metrics.get("comprl/extractor/seconds", 0.0)
        self._seconds["all"] = time.perf_counter() - self._started
        table.add_row("seconds", " · ".join(f"{name} {value:.0f}" for name, value in self._seconds.items() if value))
        for name, path in saved.items():
            table.add_row(name, path)
        self._console.print(table)


def _experience_rows(table: Table, metrics: Metrics) -> None:
    def count(name: str) -> str:
        return f"{metrics.get(f'comprl/{name}', 0):.0f}"

    operations = ("added", "updated", "merged", "discarded", "rejected")
    table.add_row("bank entries", count("bank/size"))
    table.add_row("operations", " · ".join(f"{name} {count(f'operations/{name}')}" for name in operations))
    table.add_row("extractor updates", count("extractor/updates"))
    troubles = {"retried": "retried", "dead": "given up", "dropped": "dropped", "depth": "left in the queue"}
    if any(metrics.get(f"comprl/queue/{name}") for name in troubles):
        shown = " · ".join(f"{words} {count(f'queue/{name}')}" for name, words in troubles.items())
        table.add_row("distillations", shown)
    table.add_row(
        "retrieval",
        f"p50 {_number(metrics.get('comprl/bank/latency_p50_ms'), 1)} ms · "
        f"p95 {_number(metrics.get('comprl/bank/latency_p95_ms'), 1)} ms",
    )
