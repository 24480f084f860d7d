"""Look of all figures: colours of the arms, type, lines; and how a figure is saved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

COLOURS = {
    "complementary": "#0072b2",
    "self_distillation": "#8a5ab5",
    "experience_only": "#009e73",
    "static_online": "#e69f00",
    "offline": "#cc79a7",
    "baseline": "#4d4d4d",
    "self_imitation": "#999999",
    "shared_baseline": "#d55e00",
    "all_guided": "#56b4e9",
    "no_merge": "#882255",
    "no_search_and_ask": "#44aa99",
}
"""Arms in the order in which they are named; from the palettes of Okabe and Ito and of Tol, for the colour-blind."""

GREY = "#767676"

_RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#b0b0b0",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#b0b0b0",
    "ytick.color": "#b0b0b0",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "text.parse_math": False,  # a name may have dollars
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.06,
    "savefig.dpi": 160,
    # The same runs give the same bytes.
    "svg.hashsalt": "comprl",
}


def colours(arms: Sequence[str]) -> list[str]:
    """Return a colour for each line: that of its arm, or one after the other if arms repeat or are unknown."""
    if len(set(arms)) == len(arms) and set(arms) <= COLOURS.keys():
        return [COLOURS[arm] for arm in arms]
    return [colour for _, colour in zip(arms, cycle(COLOURS.values()), strict=False)]


@contextmanager
def styled() -> Iterator[None]:
    """Use the look for what is drawn meanwhile."""
    with matplotlib.rc_context(_RC):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG and return the files.

    Args:
        figure: What was drawn.
        path: File without its ending.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    for file in files:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
