"""Report of the miniature: its tables and figures from the folders of the runs.

``python -m recipes.miniature.report --output outputs/miniature [--into docs/results/miniature] [--add]``
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from recipes.miniature.rows import Row, merge_rows, read_rows, stored_rows
from recipes.miniature.tables import CAPTIONS, journal_table, paired_table, success_table, time_table


def report(output: Path, into: Path | None = None, *, add: bool = False) -> bool:
    """Print the tables, and write rows, tables and figures.

    Args:
        output: Folder with ``runs``.
        into: Folder of what is written; None for ``output``.
        add: Keep the rows in ``into`` of runs that ``output`` does not have.

    Returns:
        Whether there was a finished run.
    """
    # They need matplotlib, the tables do not.
    from recipes.miniature.figures import draw
    from recipes.miniature.over_families import draw_over_families

    into = into or output
    file = into / "rows.jsonl"
    rows = read_rows(output / "runs")
    if add:
        rows = merge_rows(stored_rows(file), rows)
    if not rows:
        print(f"No run has finished in {output / 'runs'}.")
        return False
    into.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tables_page(rows)
    (into / "tables.md").write_text(page)
    print(page.partition("\n\n")[2], end="")
    for file in (*draw(rows, into), *draw_over_families(rows, into)):
        print(f"figure: {file}")
    return True


def tables_page(rows: Sequence[Row]) -> str:
    """Return the text of ``tables.md``."""
    text = "\n\n".join(f"## {title}\n\n{table}\n\n{caption}" for title, table, caption in _tables(rows))
    return f"# Tables of the miniature\n\n{text}\n"


def _tables(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return title, table and caption of each."""
    return [
        ("Success on held-out instances", success_table(rows), CAPTIONS["success"]),
        ("Differences on held-out instances", paired_table(rows), CAPTIONS["paired"]),
        ("Success in training, guided and free half", success_table(rows, "training"), CAPTIONS["training"]),
        ("Differences in training", paired_table(rows, "training"), CAPTIONS["paired"]),
        ("What was learned", journal_table(rows), CAPTIONS["journal"]),
        ("Wall clock", time_table(rows), CAPTIONS["time"]),
    ]


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.miniature.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the miniature's files")
    parser.add_argument("--into", type=Path, help="folder of rows, tables and figures (default: the same)")
    parser.add_argument("--add", action="store_true", help="keep the rows of other runs that are there already")
    options = parser.parse_args()
    return 0 if report(options.output, options.into, add=options.add) else 1


if __name__ == "__main__":
    sys.exit(main())
