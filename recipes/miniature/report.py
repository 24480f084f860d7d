"""Report of the miniature: its tables and figures from the folders of the runs.

``python -m recipes.miniature.report --output outputs/miniature [--into docs/results/miniature]``
"""

import argparse
import json
import sys
from pathlib import Path

from recipes.miniature.rows import read_rows
from recipes.miniature.tables import BATCHES, journal_table, paired_table, success_table, time_table


def report(output: Path, into: Path | None = None) -> None:
    """Print the tables, and write rows, tables and figures.

    Args:
        output: Folder with ``runs``.
        into: Folder of what is written; None for ``output``.
    """
    from recipes.miniature.figures import draw  # needs matplotlib, the tables do not

    rows = read_rows(output / "runs")
    if not rows:
        print("No run has finished yet.")
        return
    into = into or output
    into.mkdir(parents=True, exist_ok=True)
    (into / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = [success_table(rows), paired_table(rows), journal_table(rows), time_table(rows), BATCHES]
    (into / "tables.md").write_text("\n\n".join(tables) + "\n")
    print("\n\n".join(tables))
    for file in draw(rows, into):
        print(f"figure: {file}")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.miniature.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the miniature's files")
    parser.add_argument("--into", type=Path, help="folder of rows, tables and figures (default: the same)")
    options = parser.parse_args()
    report(options.output, options.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
