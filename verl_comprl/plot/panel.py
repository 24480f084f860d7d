"""Draws a panel of a figure: lines with their bands, each named at its end instead of in a legend."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from verl_comprl.curves.bands import Band
from verl_comprl.curves.run import Series

_LABEL_POINTS = 8.5
_LABEL_CHARACTERS = 28
"""Of a line of a label; a longer one would take the panel's width from its axes."""
_LINE_HEIGHT = 1.3
_RIGHT = 1.03
"""Left end of the names, in widths of the panel."""


@dataclass(frozen=True)
class Line:
    """What is drawn of one group of runs."""

    name: str
    colour: str
    band: Band
    dashed: bool = False
    markers: bool = False
    """Whether single points are shown: they are few."""
    behind: Sequence[Series] = ()
    """Series drawn faintly: what was smoothed, or single runs."""


def draw_lines(
    panel: Axes,
    lines: Sequence[Line],
    *,
    share: bool = False,
    bounds: tuple[float, float] = (0.0, math.inf),
    last: int | None = None,
) -> None:
    """Draw lines and their names.

    Args:
        panel: Where to draw.
        lines: The lines; those without a point are left out.
        share: Whether values are shares of 1, shown in percent.
        bounds: Lowest and highest possible value, of other values than shares; the axis begins at 0 if that is the
            lowest.
        last: Last step of the axis, which begins at 0; None to fit the lines.
    """
    lines = [line for line in lines if line.band.steps]
    bounds = (0.0, 1.0) if share else bounds
    ends = [line.band.steps[-1] for line in lines]
    if last is not None:
        panel.set_xlim(0, 1.04 * last)
    for line in reversed(lines):  # the first one on top
        _draw(panel, line, bounds)
    if share:
        panel.set_ylim(0, 1)
        panel.yaxis.set_major_formatter(PercentFormatter(1, symbol="\N{NO-BREAK SPACE}%"))  # as in the names
    elif bounds[0] == 0:
        panel.set_ylim(bottom=0, top=max(panel.get_ylim()[1], 1e-9) * 1.03)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    panel.set_xlabel("actor step")
    _name(panel, lines, share, max(ends, default=0) if last is None else last)


def _draw(panel: Axes, line: Line, bounds: tuple[float, float]) -> None:
    band = line.band
    low, high = np.clip(band.low, *bounds), np.clip(band.high, *bounds)  # a t-interval does not know of bounds
    for series in line.behind:
        steps = sorted(series)
        panel.plot(steps, [series[step] for step in steps], color=line.colour, alpha=0.25, linewidth=0.8)
    if band.has_interval and len(band.steps) == 1:  # a band of one step has no width
        panel.vlines(band.steps, low, high, color=line.colour, alpha=0.4, linewidth=2)
    elif band.has_interval:
        panel.fill_between(band.steps, low, high, color=line.colour, alpha=0.14, linewidth=0)
    marker = "o" if line.markers or len(band.steps) == 1 else ""
    style, width = ((0, (3, 1.2)), 1.5) if line.dashed else ("-", 1.8)
    look = {"linestyle": style, "linewidth": width, "color": line.colour, "marker": marker, "markersize": 3.5}
    panel.plot(band.steps, band.means, **look, clip_on=False)  # else a marker at 0 or 100 % would be cut in half


def _name(panel: Axes, lines: Sequence[Line], share: bool, last: int) -> None:
    """Write the name and last value of each line next to its end, moved apart where they would overlap.

    A stroke leads from the end of a line to its name, unless the line ends early: it would look like its continuation.
    """
    figure = panel.get_figure(root=True)
    assert figure is not None
    spec = panel.get_subplotspec()
    rows = spec.get_gridspec().nrows if spec else 1
    # The layout is made when the figure is drawn; about 0.7 of the height is left for panels.
    height = 72 * figure.get_figheight() / rows * 0.7
    bottom, top = panel.get_ylim()
    ends = [(line.band.means[-1] - bottom) / (top - bottom) for line in lines]
    labels = [_label(line, _shown(line.band.means[-1], top, share), last) for line in lines]
    rows_of_text = max((label.count("\n") + 1 for label in labels), default=1)
    places = spread(ends, rows_of_text * _LABEL_POINTS * _LINE_HEIGHT / height)
    for line, label, place in zip(lines, labels, places, strict=True):
        early = line.band.steps[-1] < last
        panel.annotate(
            label,
            xy=(line.band.steps[-1], line.band.means[-1]),
            xytext=(_RIGHT, place),
            textcoords=panel.transAxes,
            annotation_clip=False,
            color=line.colour,
            fontsize=_LABEL_POINTS,
            linespacing=1.1,
            verticalalignment="center",
            arrowprops=None
            if early
            else {
                "arrowstyle": "-",
                "color": line.colour,
                "linewidth": 0.7,
                "alpha": 0.6,
                "shrinkB": 3,
                "relpos": (0, 0.5),  # from the middle of the name's left edge, so that it crosses no other name
            },
        )


def _label(line: Line, value: str, last: int) -> str:
    """Return the name of a line and its last value, a long one in several rows."""
    step = line.band.steps[-1]
    label = f"{line.name}: {value}" + (f" (step {step})" if step < last else "")
    if len(label) <= _LABEL_CHARACTERS:
        return label
    label = label.replace(" %", "\N{NO-BREAK SPACE}%").replace("(step ", "(step\N{NO-BREAK SPACE}")
    settings = label.replace(", ", ",\n").split("\n")
    return "\n".join(textwrap.fill(setting, _LABEL_CHARACTERS) for setting in settings)


def _shown(value: float, top: float, share: bool) -> str:
    if share:
        return f"{100 * value:.0f} %"
    decimals = 2 - math.floor(math.log10(max(abs(top), 1e-9)))
    return f"{value:.{min(2, max(0, decimals))}f}"


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return places in [0, 1] that are at least ``gap`` apart, as close as possible to the given ones.

    Overlapping places are joined into a block, whose middle is the mean of what it holds; of equal places the first one
    comes out highest. If there is no room for all, they exceed 1.
    """
    order = sorted(range(len(places)), key=lambda index: (places[index], -index))
    blocks: list[list[int]] = []

    def start(block: list[int]) -> float:
        length = gap * (len(block) - 1)
        wanted = sum(places[index] for index in block) / len(block) - length / 2
        return max(0.0, min(wanted, 1 - length))

    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and start(blocks[-1]) < start(blocks[-2]) + gap * len(blocks[-2]):
            last = blocks.pop()
            blocks[-1] += last
    found = [0.0] * len(places)
    for block in blocks:
        for number, index in enumerate(block):
            found[index] = start(block) + gap * number
    return found
