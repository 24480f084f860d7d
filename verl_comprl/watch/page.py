"""The page: rows of a name, the latest value, the recent mean, a curve and a remark, as wide as the terminal allows."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verl_comprl.display.printable import printable
from verl_comprl.display.units import duration, percent
from verl_comprl.record.reader import TRAIN_LOG
from verl_comprl.watch.sparkline import Sparkline
from verl_comprl.watch.troubles import troubles
from verl_comprl.watch.watched_run import RECENT, WatchedRun, recent_mean

_WIDE, _NARROW = 96, 56
"""Columns from which there is room for remarks, and below which there is none for recent means."""
_BEFORE_REMARKS = 50
"""Columns that remarks leave to name, numbers and curve; a remark that is longer than the rest has more lines."""
_MODES = {"with": "with experience", "without": "without"}


class Row(NamedTuple):
    """One row of the page."""

    name: str
    now: str = ""
    mean: str = ""
    curve: RenderableType = ""
    remark: str = ""
    style: str = ""


class Page:
    """Renders a :class:`WatchedRun` as it is."""

    def __init__(self, watched: WatchedRun, *, hint: str = "") -> None:
        """Show ``watched``.

        Args:
            watched: Refreshed by the caller.
            hint: What the user can do, such as the key that quits.
        """
        self._watched, self._hint = watched, hint

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render into the width of the terminal."""
        width = options.max_width
        # What has gone wrong and how to quit stand where a low terminal, which cuts the end off, still shows them.
        parts = [self._title(width), self._progress(width), *self._troubles(), self._latest_line()]
        rows = list(self._rows())
        if rows:
            parts += ["", _table(rows, width)]
        yield Group(*parts)

    def _title(self, width: int) -> RenderableType:
        status = self._watched.status()
        name = printable(self._watched.run.arm) if self._watched.run else "run"
        colour = {"running": "green", "starting": "cyan", "finished": "blue"}.get(status.split(" ")[0], "yellow")
        title = Text.assemble((name.replace("_", " "), "bold"), " · ", (status, colour), no_wrap=True)
        folder = Text(printable(str(self._watched.folder)), style="dim", no_wrap=True, overflow="ellipsis")
        if width < _WIDE:
            return Group(title, folder)
        table = Table.grid(expand=True, padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        table.add_row(title, folder)
        return table

    def _progress(self, width: int) -> RenderableType:
        watched = self._watched
        step, total = watched.state.step, watched.total
        texts = [f"{_seconds(watched.seconds_per_step())} per step"] if step else []
        if 0 < step < total and watched.is_running:
            texts.append(f"about {duration(watched.seconds_left())} left")
        if not total:
            return Text(" · ".join([f"step {step}", *texts]))
        bar, times = ProgressBar(total, step, width=max(8, min(40, width // 3))), Text(" · ".join(texts))
        line = Table.grid(padding=(0, 1))
        if width < _WIDE:
            line.add_row(f"step {step}/{total}", bar)
            return Group(line, times)
        line.add_row(f"step {step}/{total}", bar, times)
        return line

    def _rows(self) -> Iterator[Row]:
        watched = self._watched
        if not watched.steps and not watched.state.evaluations:
            return
        yield from self._success()
        yield from self._evaluations()
        if watched.state.has_experience:
            yield from self._extractor()
            yield from self._bank()
        yield from self._cost()

    def _success(self) -> Iterator[Row]:
        if not self._watched.steps:
            return
        yield Row("success", "now", f"{RECENT} steps", style="bold")
        for half in ("guided", "free") if self._watched.state.has_experience else ("free",):
            values = self._watched.values(f"comprl/{half}/success")
            name = half if self._watched.state.has_experience else "all episodes"
            actions = recent_mean(self._watched.values(f"comprl/{half}/actions"))
            remark = "" if math.isnan(actions) else f"{actions:.1f} actions per episode"
            yield Row(f"  {name}", *_shares(values), Sparkline(values, 0, 1), remark)

    def _evaluations(self) -> Iterator[Row]:
        evaluations = self._watched.state.evaluations
        if not evaluations:
            return
        steps = sorted(evaluations)
        yield Row("evaluation", style="bold", remark=self._watched.state.evaluation_name(steps[-1]))
        for mode, name in _MODES.items():
            metric = f"comprl/eval/success_{mode}"
            values = [evaluations[step].get(metric, math.nan) for step in steps]
            if any(map(math.isfinite, values)):
                latest = evaluations[steps[-1]]
                remark = ""
                if f"{metric}_low" in latest:
                    remark = (
                        f"95 % interval {100 * latest[f'{metric}_low']:.0f} to {100 * latest[f'{metric}_high']:.0f} %"
                    )
                has_experience = any("comprl/eval/success_with" in found for found in evaluations.values())
                shown = f"  {name}" if has_experience else "  all episodes"
                yield Row(shown, percent(latest.get(metric)), "", Sparkline(values, 0, 1), remark)

    def _extractor(self) -> Iterator[Row]:
        watched = self._watched
        yield Row("extractor", style="bold", remark=watched.state.extractor())
        rewards = watched.values("comprl/extractor/reward")
        if any(map(math.isfinite, rewards)):
            remark = "of the outcomes in an update, -1 to 1"
            yield Row("  reward", *_numbers(rewards), Sparkline(rewards), remark)
        returns = watched.return_shares()
        if any(map(math.isfinite, returns)):
            yield Row("  writes nothing", *_shares(returns), Sparkline(returns, 0, 1), "share of the episodes it reads")
        waiting = watched.values("comprl/queue/depth")
        lag, samples = (self._latest(name) for name in ("queue/lag", "buffer/samples"))
        remark = f"episodes wait, for {lag} steps; {samples} samples to train on"
        yield Row("  queue", *_numbers(waiting, 0), Sparkline(waiting, 0), remark)

    def _bank(self) -> Iterator[Row]:
        sizes = self._watched.values("comprl/bank/size")
        uses, slow = self._latest("bank/uses_per_entry", 2), self._latest("bank/latency_p95_ms")
        remark = f"{uses} uses per written entry; 95 % of searches within {slow} ms"
        yield Row("bank", self._latest("bank/size"), "entries", Sparkline(sizes, 0), remark, style="bold")

    def _cost(self) -> Iterator[Row]:
        watched = self._watched
        if not watched.steps:
            return
        seconds = watched.values("timing_s/step")
        spent = watched.state.seconds
        total = sum(spent.values()) or 1.0
        shares = ", ".join(
            f"{name} {100 * value / total:.0f} %" for name, value in spent.items() if value / total > 0.005
        )
        # The seconds are those of a step alone: evaluations and checkpoints are between steps.
        remark = f"of the run: {shares}" if shares else ""
        now, mean = _seconds(seconds[-1]), _seconds(recent_mean(seconds))
        yield Row("time per step", now, mean, Sparkline(seconds, 0), remark, style="bold")
        device = watched.values("actor/perf/max_memory_allocated_gb")
        if any(map(math.isfinite, device)):
            others = {
                "extractor": "comprl/extractor/perf/max_memory_allocated_gb",
                "host": "actor/perf/cpu_memory_used_gb",
            }
            latest = {name: watched.state.metrics.get(metric) for name, metric in others.items()}
            remark = ", ".join(f"{name} {value:.1f} GB" for name, value in latest.items() if value is not None)
            now = f"{device[-1]:.1f} GB" if math.isfinite(device[-1]) else "-"
            yield Row("memory of actor", now, "", Sparkline(device, 0), remark, style="bold")

    def _latest(self, name: str, decimals: int = 0) -> str:
        return _number(self._watched.state.metrics.get(f"comprl/{name}", math.nan), decimals)

    def _troubles(self) -> Iterator[Text]:
        lines = troubles(self._watched.steps)
        for line in lines:
            yield Text(f"! {line}", style="yellow")
        if lines:
            log = printable(str(self._watched.folder / TRAIN_LOG))
            yield Text(f"  the first traceback of each is in {log}", style="dim")

    def _latest_line(self) -> Text:
        last = f"last line written {duration(self._watched.silence())} ago"
        return Text(" · ".join(filter(None, (last, self._hint))), style="dim")


def _table(rows: Sequence[Row], width: int) -> Table:
    """Return the rows with the columns that there is room for."""
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if width >= _NARROW:
        table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, style="cyan")
    if width >= _WIDE:
        table.add_column(style="dim", max_width=width - _BEFORE_REMARKS)
    for row in rows:
        cells: list[RenderableType] = [Text(row.name, style=row.style), row.now]
        if width >= _NARROW:
            cells.append(row.mean)
        cells.append(row.curve)
        if width >= _WIDE:
            cells.append(Text(row.remark))
        table.add_row(*cells)
    return table


def _shares(values: list[float]) -> tuple[str, str]:
    return _share(values[-1]), _share(recent_mean(values))


def _share(value: float) -> str:
    return percent(None if math.isnan(value) else value)


def _numbers(values: list[float], decimals: int = 2) -> tuple[str, str]:
    return _number(values[-1], decimals), _number(recent_mean(values), decimals)


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "-"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 20 else duration(seconds)
