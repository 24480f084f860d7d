"""Executes notebooks from top to bottom and saves them with what they print: ``python examples/execute.py [FILE …]``.

They need the packages of the extra ``dev``, and nothing beyond this machine. A cell tagged ``parameters`` has what may
be changed; ``execute`` puts an assignment after it, as papermill does.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(file: Path, parameters: dict[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """Return an executed notebook.

    Args:
        file: The notebook, which is not changed.
        parameters: Values for names of its parameter cell.
        timeout: Seconds for one cell.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails; the message has the cell and its output.
    """
    notebook = nbformat.read(file, as_version=4)
    given = "\n".join(f"{name} = {value!r}" for name, value in (parameters or {}).items())
    for cell in notebook.cells if given else ():
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += f"\n{given}"
    # Commands in cells are those of this Python's environment, and modules those of this repository.
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")])),
    }
    # Under pytest a kernel would give commands no standard error that they can inherit.
    given_here = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    resources = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(notebook, timeout=timeout, iopub_timeout=60, resources=resources, record_timing=False)
    client.execute(env=given_here | variables)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Return the outputs without what libraries log, and with what a cell prints in one piece.

    The kernel sends as many pieces as it happens to.
    """
    joined: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute notebooks and save them with what they print.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", default=NOTEBOOKS, help="default: all")
    for path in parser.parse_args().files:
        nbformat.write(execute(path), path)
        print(path)
