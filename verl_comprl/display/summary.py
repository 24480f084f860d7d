"""Summary at the end of a run: a table of what happened, and where the results are."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from verl_comprl.display.progress import Metrics
from verl_comprl.display.run_state import RunState
from verl_comprl.display.units import counted, duration

_NEXT = {
    "checkpoint": "to evaluate it: {comprl} evaluate --checkpoint {path}",
    "experience bank": "to read it: {comprl} bank list --path {path}",
    "learning curves": "to see them: {tensorboard} --logdir {path}",
    "all metrics": "to look at the run in a browser: {comprl} view {folder} --open",
}
"""A hint under each result: the command that opens it."""


def summary(state: RunState, totals: Metrics) -> RenderableType:
    """Return the table.

    Args:
        state: State at the end of the run.
        totals: Metrics of the whole run.
    """
    table = Table(title="Result", title_justify="left", show_header=False)
    for step in sorted({min(state.evaluations), max(state.evaluations)} if state.evaluations else ()):
        table.add_row(f"evaluation {state.evaluation_name(step)}", state.evaluation(step, interval=True))
    if state.evaluations:
        table.add_row("", "(in brackets: 95 % confidence interval)")
    if "comprl/bank/size" in totals:
        for row in _experience(totals):
            table.add_row(*row)
    table.add_row("time", _time(state, totals))
    return table


def _experience(totals: Metrics) -> Iterator[tuple[str, str]]:
    def total(name: str) -> float:
        return totals.get(f"comprl/{name}", 0.0)

    operations = {"added": "written", "updated": "updated", "merged": "merged", "discarded": "discarded"}
    changes = ", ".join(f"{total(f'operations/{name}'):.0f} {word}" for name, word in operations.items())
    rejected = f"{total('operations/rejected'):.0f} requests of the extractor rejected"
    yield "experience bank", f"{counted(total('bank/size'), 'entry', 'entries')} now; {changes}; {rejected}"
    if "comprl/extractor/updates" in totals:
        yield "extractor", f"trained in {counted(total('extractor/updates'), 'update', 'updates')}"
    troubles = {"retried": "tried again", "dead": "given up", "dropped": "dropped", "depth": "left in the queue"}
    if any(total(f"queue/{name}") for name in troubles):
        shown = ", ".join(f"{total(f'queue/{name}'):.0f} {word}" for name, word in troubles.items())
        yield "episodes not read", shown
    median, slow = total("bank/latency_p50_ms"), total("bank/latency_p95_ms")
    yield "search in bank", f"median {median:.1f} ms, 95 % within {slow:.1f} ms"


def _time(state: RunState, totals: Metrics) -> str:
    phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in state.seconds.items() if seconds >= 0.5)
    learning = totals.get("comprl/extractor/seconds", 0.0)
    background = f"; in the background: extractor training {duration(learning)}" if learning else ""
    return f"{duration(time.perf_counter() - state.started)}: {phases}{background}"


def results(saved: Mapping[str, str]) -> str:
    """Return where the results are and, for some, a command that opens them."""
    width = max(map(len, saved), default=0)
    lines = []
    for name, path in saved.items():
        lines.append(f"  {name:<{width}}  {path}")
        if name in _NEXT and "://" not in path:
            programs = {program: _command(program) for program in ("comprl", "tensorboard")}
            command = _NEXT[name].format(path=path, folder=Path(path).parent, **programs)
            lines.append(f"  {'':<{width}}    {command}")
    return "\n".join(["Results:", *lines])


def _command(name: str) -> str:
    """Return a command of this Python environment in a form that works in the user's shell."""
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return name
    file = Path(sys.prefix, "bin", name)
    return os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)
