"""Notebooks are saved as they were executed, and run from top to bottom; those that train, in few steps."""

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from execute import FOLDER, NOTEBOOKS, execute

TRAINING: dict[str, dict[str, Any]] = {"complementary_rl": {"STEPS": 3}, "existing_pipeline": {"STEPS": 2}}
QUICK: dict[str, dict[str, Any]] = {"bank_from_logs": {"EPISODES": 24}}
PICTURE_BYTES = 60_000
OURS = re.compile(r"/(root|home|work|tmp|var)/[\w.-]+")
"""Folders of the machine on which a notebook was executed."""


REPEATABLE = ("own_environment", "reading_a_run", "experience_bank")
"""Notebooks that print the same every time, but for the time that something took."""


def named(training: bool) -> list[Any]:
    return [pytest.param(file, id=file.stem) for file in NOTEBOOKS if (file.stem in TRAINING) == training]


def cells(notebook: Any, kind: str) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def pictures(notebook: Any) -> list[bytes]:
    outputs = [output for cell in cells(notebook, "code") for output in cell.outputs]
    return [base64.b64decode(output.data["image/png"]) for output in outputs if "image/png" in output.get("data", {})]


def printed(notebook: Any, folder: str) -> list[str]:
    """Texts that the cells print or show, with ``FOLDER`` for the folder of the notebook's files."""
    outputs = [output for cell in cells(notebook, "code") for output in cell.outputs]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return [re.sub(r"[\d.]+ ms", "… ms", text.replace(folder, "FOLDER")) for text in texts]


def run(file: Path, parameters: dict[str, Any], folder: Path) -> None:
    has_files = "FOLDER" in file.read_text()
    executed = execute(file, parameters | ({"FOLDER": str(folder)} if has_files else {}), timeout=600)
    saved = nbformat.read(file, as_version=4)
    assert len(pictures(executed)) == len(pictures(saved)) >= 1
    printing = [[bool(cell.outputs) for cell in cells(notebook, "code")] for notebook in (executed, saved)]
    assert printing[0] == printing[1]
    if file.stem == "bank_from_logs":  # its model's answers are sampled
        text = " ".join(printed(executed, str(folder)))
        counts = {mode: int(count) for mode, count in re.findall(r"(with|without) the bank: (\d+) of 96 opened", text)}
        assert counts["with"] > counts["without"], counts
    if file.stem in REPEATABLE:
        assert printed(executed, str(folder)) == printed(saved, f"outputs/notebooks/{file.stem}")


@pytest.mark.slow
@pytest.mark.parametrize("file", named(training=False))
def test_a_notebook_runs(file: Path, tmp_path: Path) -> None:
    run(file, QUICK.get(file.stem, {}), tmp_path)


@pytest.mark.run
@pytest.mark.long
@pytest.mark.parametrize("file", named(training=True))
def test_a_notebook_that_trains_runs(file: Path, tmp_path: Path) -> None:
    run(file, TRAINING[file.stem], tmp_path)


def test_there_are_notebooks() -> None:
    assert {*TRAINING, *QUICK, *REPEATABLE} <= {file.stem for file in NOTEBOOKS}


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_saved_as_it_was_executed(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = cells(notebook, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert pictures(notebook) and all(len(picture) < PICTURE_BYTES for picture in pictures(notebook))
    assert not OURS.search(re.sub(r'"image/png": "[^"]*"', "", nbformat.writes(notebook)))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_links_of_a_notebook_lead_somewhere(file: Path) -> None:
    text = "\n".join(cell.source for cell in cells(nbformat.read(file, as_version=4), "markdown"))
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links and all((FOLDER / link).exists() for link in links)
