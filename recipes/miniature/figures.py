"""Figures of the miniature: success over steps by arm, and what the extractor learns to write."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from recipes.miniature.rows import Row
from verl_comprl.curves.bands import mean_band
from verl_comprl.plot.panel import Line, draw_lines
from verl_comprl.plot.style import COLOURS, save, styled

SHARES = {
    "kind_family": "entries with a title that transfers",
    "right": "entries with the whole code",
    "read_right": "episodes that read the right code",
}
"""Figures of the journal that are drawn, with their titles."""

_REFERENCES = ("baseline", "self_imitation")
"""Arms without experience."""


_Values = defaultdict[str, defaultdict[int, list[float]]]
"""Values of all seeds by arm and step."""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the figures of ``rows`` as PNG and SVG into ``folder`` and return the files."""
    with styled():
        files = save(_success(rows), folder / "success")
        written = [row for row in rows if row["journal"]]
        if written:
            batch = max(row["batch"] for row in written)
            files += save(_entries([row for row in written if row["batch"] == batch], batch), folder / "entries")
    return files


def _success(rows: Sequence[Row]) -> Figure:
    batches = sorted({row["batch"] for row in rows})
    figure = Figure(figsize=(4.6 * len(batches) + 0.4, 6), layout="constrained")
    panels = figure.subplots(2, len(batches), sharey=True, squeeze=False)
    for column, batch in enumerate(batches):
        chosen = [row for row in rows if row["batch"] == batch]
        for line, mode in enumerate(("with", "without")):
            panel = panels[line][column]
            panel.set_title(f"{_families(batch)}, {mode} experience")
            draw_lines(panel, lines(_evaluated(chosen, mode)), share=True)
            if not column:
                panel.set_ylabel("success, held-out instances")
    return figure


def _evaluated(rows: Sequence[Row], mode: str) -> _Values:
    """Return success by arm and step; arms without experience are shown in both modes."""
    values: _Values = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for step, measured in row["evaluations"].items():
            shown = measured.get(mode, measured.get("without") if row["arm"] in _REFERENCES else None)
            if shown is not None:
                values[row["arm"]][int(step)].append(shown)
    return values


def _entries(rows: Sequence[Row], batch: str) -> Figure:
    figure = Figure(figsize=(4.6 * len(SHARES), 3.2), layout="constrained")
    panels = figure.subplots(1, len(SHARES))
    for panel, (name, title) in zip(panels, SHARES.items(), strict=True):
        values: _Values = defaultdict(lambda: defaultdict(list))
        for row in rows:
            for last, shares in row["journal"].items():
                if name in shares:
                    values[row["arm"]][int(last)].append(shares[name])
        panel.set_title(f"{title}, {_families(batch)}")
        draw_lines(panel, lines(values), share=True)
    return figure


def lines(values: Mapping[str, Mapping[int, Sequence[float]]]) -> list[Line]:
    """Return a line for each arm of ``values``, whose values of all seeds are by step, or by another number."""
    return [
        Line(arm.replace("_", " "), COLOURS[arm], mean_band(values[arm]), dashed=arm in _REFERENCES, markers=True)
        for arm in COLOURS
        if arm in values
    ]


def _families(batch: str) -> str:
    batch, _, updates = batch.partition("u")
    number, _, prompts = batch.partition("x")
    text = f"{number} task famil{'y' if number == '1' else 'ies'}"
    text = f"{text}, {prompts} prompts" if prompts else text
    return f"{text}, {updates} updates" if updates else text
