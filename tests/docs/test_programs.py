"""The Python programs of README and docs run as written."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT, pages

BLOCKS = [(page.name, number, block) for page in pages() for number, block in enumerate(page.blocks("python"))]
NOT_RUN = {
    ("docs/sweep.md", 0): "trains",
    ("docs/environments/README.md", 2): "generates ALFWorld's games",
}


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_a_program_is_python(page: str, number: int, block: str) -> None:
    compile(block, f"{page} {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(page, block, id=f"{page}-{n}") for page, n, block in BLOCKS if (page, n) not in NOT_RUN],
)
def test_a_program_runs(page: str, block: str, tmp_path: Path) -> None:
    program = "import ast, asyncio, inspect, pathlib, sys\n"
    program += "code = compile(pathlib.Path(sys.argv[1]).read_text(), 'page', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)\n"
    program += "found = eval(code, {'__name__': 'page'})\nif inspect.iscoroutine(found):\n    asyncio.run(found)\n"
    (tmp_path / "block.py").write_text(block)
    (tmp_path / "RUN").symlink_to(ROOT / "examples/run")
    done = subprocess.run(
        [sys.executable, "-c", program, "block.py"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_what_is_not_run_exists() -> None:
    assert set(NOT_RUN) <= {(page, number) for page, number, _ in BLOCKS}
