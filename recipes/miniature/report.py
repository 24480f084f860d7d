"""Tables and figures of the miniature from the folders of its runs.

Owns what is read and compared: success on held-out instances, with experience and without, of every arm, number of
families and seed; and what the extractor wrote. The figures are drawn in ``figures``.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from env_adapters.vaults.world import code_of
from recipes.miniature.entries import is_right, style_of

Row = dict[str, Any]
"""One run: arm, families, seed, seconds, ``evaluations`` by step and ``journal`` by window of steps."""

WINDOW = 15
"""Steps over which the figures of the journal are averaged."""

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

_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom."""


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % t-interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = _T95[len(values) - 2] if len(values) - 2 < len(_T95) else 1.96
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def read_rows(runs: Path) -> list[Row]:
    """Return a row for each finished run in a folder."""
    rows = []
    for finished in sorted(runs.glob("*-*-*/finished.json")):
        arm, families, seed = finished.parent.name.rsplit("-", 2)
        if arm == "filling":
            continue
        evaluations = {}
        for line in (finished.parent / "evaluations.jsonl").read_text().splitlines():
            record = json.loads(line)
            evaluations[str(record["step"])] = {
                mode: record[key] for mode in ("with", "without") if (key := f"comprl/eval/success_{mode}") in record
            }
        rows.append(
            {
                "arm": arm,
                "families": int(families),
                "seed": int(seed),
                "seconds": json.loads(finished.read_text())["seconds"],
                "evaluations": evaluations,
                "journal": read_journal(finished.parent / "experience.jsonl", world=int(seed)),
            }
        )
    return rows


def read_journal(file: Path, *, world: int) -> dict[str, dict[str, float]]:
    """Return, for each window of steps, named after its last step, shares of what was written and read.

    Written entries: ``kind_family`` titles (which transfer), ``right`` contents, and both (``good``). Entries that
    guided an episode: ``read_rule``, their title names the episode's kind and family; ``read_right``, their content is
    the episode's code.
    """
    if not file.exists():
        return {}
    counts: dict[str, defaultdict[str, list[bool]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] not in ("written", "read"):
            continue
        last = str(-(-event["step"] // WINDOW) * WINDOW)
        window = counts.setdefault(last, defaultdict(list))
        kind, family = event["goal"].split()[2:4]
        code = code_of(world, family, kind, length=3)
        title, _, content = (event.get("text") or f"{event['title']}\n{event['content']}").partition("\n")
        rule, right = set(title.split()) == {kind, family}, is_right(content, code)
        if event["event"] == "written":
            style = style_of(title)
            window["kind_family"].append(style == "kind_family")
            window["right"].append(right)
            window["good"].append(right and rule)
        else:
            window["read_rule"].append(rule)
            window["read_right"].append(right)
    return {last: {name: sum(v) / len(v) for name, v in window.items()} for last, window in counts.items()}


def success_table(rows: Iterable[Row]) -> str:
    """Return mean and standard deviation over seeds at every evaluation, as a Markdown table."""
    groups: defaultdict[tuple[int, str, str], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for step, values in row["evaluations"].items():
            for mode, value in values.items():
                groups[row["families"], row["arm"], mode][int(step)].append(value)
    steps = sorted({step for values in groups.values() for step in values})
    lines = [
        "| families | arm | evaluated | " + " | ".join(f"step {step}" for step in steps) + " | last, by seed |",
        "|---|---|---|" + "---|" * (len(steps) + 1),
    ]
    for (families, arm, mode), values in sorted(groups.items()):
        cells = [_cell(values.get(step, [])) for step in steps]
        last = " ".join(f"{value:.2f}"[1 if value < 1 else 0 :] for value in values[max(values)])
        lines.append(f"| {families} | {arm} | {mode} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def paired_table(rows: Sequence[Row]) -> str:
    """Return the ``COMPARISONS`` at the last common evaluation, paired over seeds, with 95 % t-intervals."""
    found = {(row["families"], row["arm"], row["seed"]): row["evaluations"] for row in rows}
    lines = ["| families | difference | step | mean ± 95 % | seeds above 0 |", "|---|---|---|---|---|"]
    for families in sorted({row["families"] for row in rows}):
        for arm, mode, other, other_mode in COMPARISONS:
            pairs = [
                (found[families, arm, seed], found[families, other, seed])
                for seed in sorted({row["seed"] for row in rows})
                if (families, arm, seed) in found and (families, other, seed) in found
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
                f"| {families} | {arm} ({mode}) − {other} ({other_mode}) | {step} | "
                f"{statistics.mean(differences):+.2f}{spread} | {above} of {len(differences)} |"
            )
    return "\n".join(lines)


def journal_table(rows: Iterable[Row]) -> str:
    """Return what the extractor wrote and the actor read, mean over seeds by window of steps."""
    names = ("kind_family", "right", "good", "read_rule", "read_right")
    groups: defaultdict[tuple[int, str], defaultdict[str, defaultdict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        for last, values in row["journal"].items():
            for name, value in values.items():
                groups[row["families"], row["arm"]][name][int(last)].append(value)
    lines = ["| families | arm | share | by window of steps |", "|---|---|---|---|"]
    for (families, arm), shares in sorted(groups.items()):
        for name in names:
            windows = sorted(shares[name].items())
            text = " ".join(f"{statistics.mean(values):.2f}" for _, values in windows)
            lines.append(f"| {families} | {arm} | {name} | {text} |")
    return "\n".join(lines)


def report(output: Path) -> None:
    """Print the tables, and write rows and figures into ``output``."""
    from recipes.miniature.figures import draw  # needs matplotlib, the tables do not

    rows = read_rows(output / "runs")
    if not rows:
        print("No run has finished yet.")
        return
    (output / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = [success_table(rows), paired_table(rows), journal_table(rows)]
    (output / "tables.md").write_text("\n\n".join(tables) + "\n")
    print("\n\n".join(tables))
    for file in draw(rows, output):
        print(f"figure: {file}")
