"""Tables of the miniature: success by arm and step, paired differences, and what the extractor wrote.

Owns what is compared. The runs are read in ``rows``, and the figures are drawn in ``figures``.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipes.miniature.rows import Row, read_rows

COMPARISONS = (
    ("complementary", "with", "baseline", "without"),
    ("complementary", "with", "static_online", "with"),
    ("complementary", "with", "experience_only", "with"),
    ("experience_only", "with", "baseline", "without"),
    ("static_online", "with", "baseline", "without"),
    ("offline", "with", "baseline", "without"),
    ("self_distillation", "with", "complementary", "with"),
    ("complementary", "without", "baseline", "without"),
    ("self_distillation", "without", "baseline", "without"),
    ("self_distillation", "without", "self_imitation", "without"),
)
"""Differences in the second table: arm and evaluation, minus arm and evaluation."""

BATCHES = "Batch: task families, with four prompts each in a step unless it says how many (1x12: one family, twelve)."

_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom."""


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % t-interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = _T95[len(values) - 2] if len(values) - 2 < len(_T95) else 1.96
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def success_table(rows: Iterable[Row]) -> str:
    """Return mean and standard deviation over seeds at every evaluation, as a Markdown table."""
    groups: defaultdict[tuple[str, str, str], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for step, values in row["evaluations"].items():
            for mode, value in values.items():
                groups[row["batch"], row["arm"], mode][int(step)].append(value)
    steps = sorted({step for values in groups.values() for step in values})
    lines = [
        "| batch | arm | evaluated | " + " | ".join(f"step {step}" for step in steps) + " | last, by seed |",
        "|---|---|---|" + "---|" * (len(steps) + 1),
    ]
    for (batch, arm, mode), values in sorted(groups.items()):
        cells = [_cell(values.get(step, [])) for step in steps]
        last = " ".join(f"{value:.2f}"[1 if value < 1 else 0 :] for value in values[max(values)])
        lines.append(f"| {batch} | {arm} | {mode} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def paired_table(rows: Sequence[Row]) -> str:
    """Return the ``COMPARISONS`` at the last common evaluation, paired over seeds, with 95 % t-intervals."""
    found = {(row["batch"], row["arm"], row["seed"]): row["evaluations"] for row in rows}
    lines = ["| batch | difference | step | mean ± 95 % | seeds above 0 |", "|---|---|---|---|---|"]
    for batch in sorted({row["batch"] for row in rows}):
        for arm, mode, other, other_mode in COMPARISONS:
            pairs = [
                (found[batch, arm, seed], found[batch, other, seed])
                for seed in sorted({row["seed"] for row in rows})
                if (batch, arm, seed) in found and (batch, other, seed) in found
            ]
            common = {int(step) for one, two in pairs for step in one.keys() & two.keys()}
            step = max((s for s in common if all(str(s) in a and str(s) in b for a, b in pairs)), default=0)
            if not step:
                continue
            differences = [one[str(step)][mode] - two[str(step)][other_mode] for one, two in pairs]
            half = interval(differences)
            spread = f" ± {half:.2f}" if half == half else ""
            above = sum(value > 0 for value in differences)
            lines.append(
                f"| {batch} | {arm} ({mode}) − {other} ({other_mode}) | {step} | "
                f"{statistics.mean(differences):+.2f}{spread} | {above} of {len(differences)} |"
            )
    return "\n".join(lines)


def journal_table(rows: Iterable[Row]) -> str:
    """Return what the extractor wrote and the actor read, mean over seeds by window of steps."""
    names = ("kind_family", "right", "good", "read_rule", "read_right", "extractor_reward", "unreadable")
    groups: defaultdict[tuple[str, str], defaultdict[str, defaultdict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        for last, values in row["journal"].items():
            for name, value in values.items():
                groups[row["batch"], row["arm"]][name][int(last)].append(value)
    lines = ["| batch | arm | share | by window of steps |", "|---|---|---|---|"]
    for (batch, arm), shares in sorted(groups.items()):
        for name in names:
            windows = sorted(shares[name].items())
            text = " ".join(f"{statistics.mean(values):.2f}" for _, values in windows)
            lines.append(f"| {batch} | {arm} | {name} | {text} |")
    return "\n".join(lines)


def report(output: Path) -> None:
    """Print the tables, and write rows and figures into ``output``."""
    from recipes.miniature.figures import draw  # needs matplotlib, the tables do not

    rows = read_rows(output / "runs")
    if not rows:
        print("No run has finished yet.")
        return
    (output / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = [success_table(rows), paired_table(rows), journal_table(rows), BATCHES]
    (output / "tables.md").write_text("\n\n".join(tables) + "\n")
    print("\n\n".join(tables))
    for file in draw(rows, output):
        print(f"figure: {file}")
