"""Figure of success over the number of task families, at equal episodes per family.

``python -m recipes.miniature.over_families REPORT… --into FOLDER`` draws it from rows of several reports; the report
of one output draws it by itself if it has several numbers of families.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from recipes.miniature.figures import lines
from recipes.miniature.rows import Row, stored_rows
from recipes.miniature.settings import PROMPTS_PER_FAMILY
from verl_comprl.plot.panel import draw_lines
from verl_comprl.plot.style import save, styled

Successes = defaultdict[str, defaultdict[int, list[float]]]
"""Successes of all seeds by arm and number of families."""


def number_of_families(row: Row) -> int:
    """Return how many families share the bank in a run."""
    return int(row["batch"].partition("x")[0])


def visits(row: Row) -> dict[int, str]:
    """Return the evaluated steps of a run by the prompts that each family had until then."""
    number, _, prompts = row["batch"].partition("x")
    per_step = int(prompts) / int(number) if prompts else PROMPTS_PER_FAMILY
    return {round(int(step) * per_step): step for step in row["evaluations"]}


def comparable(rows: Sequence[Row]) -> tuple[int, Successes]:
    """Return the most prompts per family that all batches had in an evaluation, and success there.

    With experience in arms that read some, otherwise without. Runs that did not get as far are left out.
    """
    reached: defaultdict[int, set[int]] = defaultdict(set)
    for row in rows:
        reached[number_of_families(row)] |= set(visits(row))
    most = max(set.intersection(*reached.values()))
    found: Successes = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if step := visits(row).get(most):
            measured = row["evaluations"][step]
            found[row["arm"]][number_of_families(row)].append(measured.get("with", measured.get("without")))
    return most, found


def draw_over_families(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw means and 95 % intervals over worlds as PNG and SVG, if there are several numbers of families.

    Runs with several optimizer steps per batch are left out.
    """
    rows = [row for row in rows if "u" not in row["batch"]]
    if len({number_of_families(row) for row in rows}) < 2:
        return []
    with styled():
        figure = Figure(figsize=(5.5, 3.6), layout="constrained")
        panel = figure.subplots()
        most, values = comparable(rows)
        draw_lines(panel, lines(values), share=True)
        panel.set_xticks(sorted({number for found in values.values() for number in found}))
        panel.set_xlabel("task families that share the bank")
        panel.set_ylabel(f"success after {most} prompts per family")
        return save(figure, folder / "families")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.miniature.over_families", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("reports", type=Path, nargs="+", help="folders with rows.jsonl")
    parser.add_argument("--into", type=Path, required=True, help="folder of the figure")
    options = parser.parse_args()
    rows = [row for report in options.reports for row in stored_rows(report / "rows.jsonl")]
    files = draw_over_families(rows, options.into)
    for file in files:
        print(f"figure: {file}")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
