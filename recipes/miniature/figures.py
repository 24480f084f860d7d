"""Figures of the miniature: success over steps and over families by arm, and what the extractor learns to write."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.miniature.rows import Row
from recipes.miniature.tables import interval

COLOURS = {
    "complementary": "#0b6e4f",
    "self_distillation": "#7b2d8b",
    "experience_only": "#2f7fbf",
    "static_online": "#d98324",
    "offline": "#a0761c",
    "baseline": "#444444",
    "self_imitation": "#999999",
    "shared_baseline": "#b23a48",
    "all_guided": "#e07a9b",
    "no_merge": "#3c9d9b",
    "no_search_and_ask": "#8a9a2b",
}

SHARES = {
    "kind_family": "entries with a title that transfers",
    "right": "entries with the whole code",
    "read_right": "episodes that read the right code",
}
"""Figures of the journal that are drawn, with their titles."""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the figures of ``rows`` as PNG and SVG into ``folder`` and return the files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    files = []
    batches = sorted({row["batch"] for row in rows})
    figure, panels = plt.subplots(
        2, len(batches), figsize=(4.2 * len(batches) + 1.5, 6.4), sharey=True, squeeze=False, layout="constrained"
    )
    for column, batch in enumerate(batches):
        chosen = [row for row in rows if row["batch"] == batch]
        for line, mode in enumerate(("with", "without")):
            panel = panels[line][column]
            _curves(panel, chosen, mode)
            panel.set_title(f"{_families(batch)}, {mode} experience", fontsize=10)
            panel.set_ylim(0, 1)
            panel.grid(alpha=0.25)
            if line:
                panel.set_xlabel("actor step")
            if not column:
                panel.set_ylabel("success, held-out instances")
    handles = {}
    for panel in panels.flat:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False, fontsize=9)
    files += _save(figure, folder / "success")
    plt.close(figure)
    if sum(batch.isdecimal() for batch in batches) > 1:
        figure, panel = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
        _over_families(panel, rows)
        files += _save(figure, folder / "families")
        plt.close(figure)
    written = [row for row in rows if row["journal"]]
    if written:
        batch = max(row["batch"] for row in written)
        shown = [row for row in written if row["batch"] == batch]
        figure, panels = plt.subplots(1, len(SHARES), figsize=(4 * len(SHARES), 3.2), layout="constrained")
        for panel, (name, title) in zip(panels, SHARES.items(), strict=True):
            _share(panel, shown, name)
            panel.set_title(f"{title}, {_families(batch)}", fontsize=9)
        panels[0].legend(frameon=False, fontsize=8)
        files += _save(figure, folder / "entries")
        plt.close(figure)
    return files


def _share(panel: Any, rows: Sequence[Row], name: str) -> None:
    """Mean over seeds of a figure of the journal, with its 95 % interval, over steps."""
    groups: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for last, figures in row["journal"].items():
            if name in figures:
                groups[row["arm"]][int(last)].append(figures[name])
    for arm in [arm for arm in COLOURS if arm in groups]:
        _band(panel, arm, groups[arm])
    panel.set_ylim(0, 1)
    panel.set_xlabel("actor step")
    panel.grid(alpha=0.25)


def _families(batch: str) -> str:
    number, _, prompts = batch.partition("x")
    text = f"{number} task famil{'y' if number == '1' else 'ies'}"
    return f"{text}, {prompts} prompts" if prompts else text


def _curves(panel: Any, rows: Sequence[Row], mode: str) -> None:
    """Mean over seeds with its 95 % interval; the baseline is shown in both modes, as it never has experience."""
    groups: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for step, values in row["evaluations"].items():
            shown = values.get(mode, values.get("without") if row["arm"] in ("baseline", "self_imitation") else None)
            if shown is not None:
                groups[row["arm"]][int(step)].append(shown)
    for arm in [arm for arm in COLOURS if arm in groups]:
        _band(panel, arm, groups[arm])


def _band(panel: Any, arm: str, values: Mapping[int, Sequence[float]]) -> None:
    """Mean over seeds with its 95 % interval, at steps that at least three seeds have reached (all, if fewer exist)."""
    enough = min(3, max(map(len, values.values())))
    steps = sorted(step for step, found in values.items() if len(found) >= enough)
    means = [statistics.mean(values[step]) for step in steps]
    halves = [interval(values[step]) for step in steps]
    style = "--" if arm in ("baseline", "self_imitation") else "-"
    panel.plot(steps, means, style, color=COLOURS[arm], label=arm.replace("_", " "), marker="o", markersize=3)
    if all(half == half for half in halves):
        low = [mean - half for mean, half in zip(means, halves, strict=True)]
        high = [mean + half for mean, half in zip(means, halves, strict=True)]
        panel.fill_between(steps, low, high, color=COLOURS[arm], alpha=0.13, linewidth=0)


def _over_families(panel: Any, rows: Sequence[Row]) -> None:
    values: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    shown = [row for row in rows if row["batch"].isdecimal()]
    common = set.intersection(*(set(row["evaluations"]) for row in shown))
    step = max(common, key=int)
    for row in shown:
        measured = row["evaluations"][step]
        values[row["arm"]][int(row["batch"])].append(measured.get("with", measured.get("without", float("nan"))))
    for arm in [arm for arm in COLOURS if arm in values]:
        numbers = sorted(values[arm])
        means = [statistics.mean(values[arm][number]) for number in numbers]
        halves = [interval(values[arm][number]) for number in numbers]
        look = {"color": COLOURS[arm], "marker": "o", "capsize": 3, "label": arm.replace("_", " ")}
        panel.errorbar(numbers, means, yerr=halves, **look)
    panel.set_xticks([1, 2, 3])
    panel.set_xlabel("task families that share the bank")
    panel.set_ylabel(f"success, step {step}")
    panel.set_ylim(0, 1)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=8)


def _save(figure: Any, path: Path) -> list[Path]:
    files = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
