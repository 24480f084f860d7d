"""The figures of ``comprl plot``, as data: which metrics each shows, and how they are drawn."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from verl_comprl.curves.bands import Band, by_step, mean_band, moving_mean
from verl_comprl.curves.groups import Group
from verl_comprl.curves.run import Series
from verl_comprl.display.units import counted
from verl_comprl.plot.panel import Line, draw_lines
from verl_comprl.plot.style import COLOURS, GREY, colours, save, styled


@dataclass(frozen=True)
class Panel:
    """A panel that compares groups of runs in one metric."""

    title: str
    metric: str
    reference: str = ""
    """Metric of the runs without experience, shown for comparison; "" for the same metric."""


@dataclass(frozen=True)
class ComparisonFigure:
    """A figure that compares groups of runs."""

    title: str
    panels: tuple[Panel, ...]
    share: bool = False
    bounds: tuple[float, float] = (0.0, inf)
    """Lowest and highest possible value, of other values than shares."""
    evaluated: bool = False
    """Whether the values are of evaluations, which are few."""
    smooth: bool = True
    """Whether the values differ from step to step by chance; those of evaluations are never smoothed."""


def _halves(what: str) -> tuple[Panel, Panel]:
    guided, free = (f"comprl/{half}/{what}" for half in ("guided", "free"))
    return Panel("guided half", guided, free), Panel("free half", free)


FIGURES = {
    "evaluation": ComparisonFigure(
        "Success in evaluations",
        (
            Panel("with experience", "comprl/eval/success_with", "comprl/eval/success_without"),
            Panel("without experience", "comprl/eval/success_without"),
        ),
        share=True,
        evaluated=True,
    ),
    "success": ComparisonFigure("Success in training", _halves("success"), share=True),
    "actions": ComparisonFigure("Actions per episode", _halves("actions")),
    "rollout_time": ComparisonFigure(
        "Seconds per step", (Panel("playing the episodes", "timing_s/gen"), Panel("whole step", "timing_s/step"))
    ),
    "bank": ComparisonFigure(
        "Experience bank",
        (
            Panel("entries", "comprl/bank/size"),
            Panel("guided episodes per written entry", "comprl/bank/uses_per_entry"),
        ),
        smooth=False,
    ),
    "extractor_reward": ComparisonFigure(
        "Reward of the extractor",
        (Panel("mean over the outcomes of an update", "comprl/extractor/reward"),),
        bounds=(-1.0, 1.0),
    ),
}
"""File name → figure. ``guided_free`` is drawn by a function, since it has a panel for each group."""

GUIDED_FREE = "guided_free"

METRICS = sorted(
    {
        name
        for figure in FIGURES.values()
        for panel in figure.panels
        for metric in filter(None, (panel.metric, panel.reference))
        for name in (metric, *((f"{metric}_low", f"{metric}_high") if figure.evaluated else ()))
    }
)
"""All metrics that are drawn."""

_CAPTION_CHARACTERS = 18
"""Per inch of a figure's width."""
_TITLE_CHARACTERS = 52
"""Of a line of a panel's title; a longer one would run into the next panel's."""

Curves = Mapping[str, Series]
"""Metric → its values, of one run."""


class Drawing:
    """The figures of some groups of runs."""

    def __init__(self, groups: Sequence[Group], window: int | None = None) -> None:
        """Read the runs.

        Args:
            groups: In any order.
            window: Steps of the moving mean; None for a 25th of the longest run.
        """
        order = list(COLOURS)
        self._groups = sorted(groups, key=lambda group: order.index(group.arm) if group.arm in order else len(order))
        self._curves = [[run.series(METRICS) for run in group.runs] for group in self._groups]
        self._colours = colours([group.arm for group in self._groups])
        longest = max((max(series) for runs in self._curves for run in runs for series in run.values()), default=0)
        self._window = max(1, round(longest / 25)) if window is None else window

    def save(self, folder: Path) -> Iterator[tuple[str, list[Path]]]:
        """Write each figure and yield its name and files; no files if no run has its metrics."""
        with styled():
            for name, comparison in FIGURES.items():
                figure = self._compare(comparison)
                yield name, save(figure, folder / name) if figure else []
            figure = self._halves()
            yield GUIDED_FREE, save(figure, folder / GUIDED_FREE) if figure else []

    def _compare(self, comparison: ComparisonFigure) -> Figure | None:
        panels = []
        for panel in comparison.panels:
            lines = [
                (group, line)
                for index, group in enumerate(self._groups)
                if (line := self._line(index, panel, comparison)).band.steps
            ]
            if lines:
                panels.append((panel, lines))
        # A panel of nothing but references says what the other one says.
        panels = [
            (panel, lines)
            for panel, lines in panels
            if not panel.reference or not all(group.is_reference for group, _ in lines)
        ]
        if not panels:
            return None
        shared = comparison.share or any(panel.reference for panel, _ in panels)
        figure, axes = self._figure(len(panels), comparison.title, sharey=shared)
        for place, (panel, lines) in zip(axes, panels, strict=True):
            place.set_title(panel.title)
            draw_lines(place, [line for _, line in lines], share=comparison.share, bounds=comparison.bounds)
        drawn = [pair for _, lines in panels for pair in lines]
        self._caption(figure, drawn, evaluated=comparison.evaluated, smooth=comparison.smooth)
        return figure

    def _halves(self) -> Figure | None:
        panels = []
        for group, runs, colour in zip(self._groups, self._curves, self._colours, strict=True):
            found = {half: [run.get(f"comprl/{half}/success", {}) for run in runs] for half in ("guided", "free")}
            if any(found["guided"]):
                looks = {"guided": colour, "free": GREY}
                panels.append((group, [self._smooth(half, looks[half], seeds) for half, seeds in found.items()]))
        if not panels:
            return None
        figure, axes = self._figure(len(panels), "Success in training, guided against free", sharey=True)
        longest = max(step for _, lines in panels for line in lines for step in line.band.steps)
        for place, (group, lines) in zip(axes, panels, strict=True):
            place.set_title(textwrap.fill(group.name, _TITLE_CHARACTERS))
            draw_lines(place, lines, share=True, last=longest)
        self._caption(figure, [(group, line) for group, lines in panels for line in lines])
        return figure

    def _line(self, index: int, panel: Panel, comparison: ComparisonFigure) -> Line:
        group, runs, colour = self._groups[index], self._curves[index], self._colours[index]
        metric = panel.reference if panel.reference and group.is_reference else panel.metric
        seeds = [run[metric] for run in runs if metric in run]
        if comparison.smooth and not comparison.evaluated:
            return self._smooth(group.name, colour, seeds, dashed=group.is_reference)
        single = comparison.evaluated and len(seeds) == len(runs) == 1
        band = _wilson(runs[0], metric) if single else mean_band(by_step(seeds))
        behind = () if single else _behind(band, seeds)
        look = {"dashed": group.is_reference, "markers": comparison.evaluated, "behind": behind}
        return Line(group.name, colour, band, **look)

    def _smooth(self, name: str, colour: str, seeds: Sequence[Series], *, dashed: bool = False) -> Line:
        smooth = [moving_mean(series, self._window) for series in seeds]
        band = mean_band(by_step(smooth))
        # Of a single run its steps are shown, of two the smoothed runs: there is no band that would show the spread.
        behind = seeds if len(seeds) == 1 and self._window > 1 else _behind(band, smooth)
        return Line(name, colour, band, dashed=dashed, behind=behind)

    def _figure(self, panels: int, title: str, *, sharey: bool) -> tuple[Figure, list[Axes]]:
        columns = min(panels, 3)
        rows = -(-panels // columns)
        figure = Figure(figsize=(4.3 * columns + (panels == 1), 2.6 * rows + 0.7), layout="constrained")
        axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False).flatten()
        for empty in axes[panels:]:
            empty.remove()
        figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=11)
        return figure, list(axes[:panels])

    def _caption(
        self, figure: Figure, drawn: Sequence[tuple[Group, Line]], *, evaluated: bool = False, smooth: bool = True
    ) -> None:
        """Say of how many runs the groups are, and what of the drawn lines' looks there is."""
        names = [group.name for group, _ in drawn]
        groups = [group for group in self._groups if group.name in names]
        # A semicolon: a name may have commas.
        counts = "; ".join(f"{group.name} ({counted(len(group.runs), 'run', 'runs')})" for group in groups)
        parts = [f"{counts}."]
        if any(line.dashed for _, line in drawn):
            parts.append("Dashed: without experience, all episodes free.")
        shaded = {len(group.runs) > 1 for group, line in drawn if line.band.has_interval}
        if True in shaded:
            parts.append("Shaded: 95 % t-interval of the mean over runs.")
        if False in shaded:
            parts.append("Shaded, of a single run: 95 % Wilson interval; episodes of one task that end alike are one.")
        behind = {len(line.behind) for _, line in drawn}
        faint = ["each run"] * any(count > 1 for count in behind) + ["single steps of one run"] * (1 in behind)
        if faint:
            parts.append(f"Faint: {', '.join(faint)}.")
        if smooth and not evaluated and self._window > 1:
            parts.append(f"Moving mean over {self._window} steps.")
        text = textwrap.fill(" ".join(parts), int(_CAPTION_CHARACTERS * figure.get_figwidth()))
        figure.supxlabel(text, x=0.01, horizontalalignment="left", fontsize=7.5, color=GREY)


def _behind(band: Band, seeds: Sequence[Series]) -> Sequence[Series]:
    return seeds if len(seeds) > 1 and not band.has_interval else ()


def _wilson(run: Curves, metric: str) -> Band:
    """Return the evaluations of one run with the intervals that it has measured itself."""
    steps = sorted(run[metric])
    low, high = (run.get(f"{metric}_{bound}", {}) for bound in ("low", "high"))
    nan = float("nan")
    return Band(
        steps,
        [run[metric][step] for step in steps],
        [low.get(step, nan) for step in steps],
        [high.get(step, nan) for step in steps],
    )
