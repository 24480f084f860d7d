"""Execution of a notebook: parameters, outputs, and a cell that fails."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from execute import execute
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.slow

LOGGING = "import sys\nprint('a', flush=True)\nprint('log', file=sys.stderr, flush=True)\nprint(STEPS)"


def written(folder: Path, *sources: str) -> Path:
    cells: list[Any] = [new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(new_notebook(cells=cells), folder / "notebook.ipynb")
    return folder / "notebook.ipynb"


def test_parameters_count_and_only_what_a_cell_prints_is_kept(tmp_path: Path) -> None:
    file = written(tmp_path, "STEPS = 20", LOGGING)
    before = file.read_bytes()
    cell = execute(file, {"STEPS": 2}).cells[1]
    assert [(output.name, output.text) for output in cell.outputs] == [("stdout", "a\n2\n")]
    assert cell.execution_count == 2 and "iopub" not in str(cell.metadata)
    assert file.read_bytes() == before


def test_a_cell_that_fails_is_an_error_with_its_text(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(written(tmp_path, "STEPS = 1", "STEPS / 0"))
