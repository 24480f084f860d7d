"""The notebooks run from top to bottom."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # A notebook may await at top level, a script may not.
    script = f"import asyncio\n\nasync def main():\n{textwrap.indent(code, '    ')}\n\nasyncio.run(main())\n"
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_there_are_notebooks():
    assert NOTEBOOKS
