"""The cache around the warm start; the training itself is ``test_warm_start``."""

import ast
import importlib
import json
import shutil
from pathlib import Path

import pytest

from recipes.minihack_small import prepare as module
from recipes.tiny_models import cache
from recipes.tiny_models.cache import STAMP, fingerprint

ROOT = Path(__file__).parents[2]
RECIPES = sorted(file.parent.name for file in ROOT.glob("recipes/*/prepare.py"))


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose recipes can be edited, and of which fingerprints are made."""
    for file in (*ROOT.glob("recipes/*/*.py"), *ROOT.glob("recipes/*/*.txt")):
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    for folder in ("env_adapters", "verl_comprl"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "recipes/tiny_models/cache.py"))
    return tmp_path


def changed_by(file: Path, sources: tuple[str, ...]) -> bool:
    """Whether an edit of the file changes the fingerprint."""
    before = fingerprint(sources)
    file.write_text(file.read_text() + "# edited\n")
    return fingerprint(sources) != before


def imported(file: Path, root: Path) -> set[Path]:
    """The file and all files of ``recipes`` that it imports, wherever in it, directly or not."""
    found, left = set(), [file]
    while left:
        file = left.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                files = [root / f"{name.replace('.', '/')}.py" for name in names if name.startswith("recipes.")]
                left += [file for file in files if file.exists()]
    return found


def test_a_second_call_returns_at_once_and_touches_nothing(tmp_path, monkeypatch, capsys):
    output = tmp_path / "models"
    output.mkdir()
    (output / STAMP).write_text(json.dumps({"fingerprint": fingerprint(module.SOURCES)}))
    (output / "marker").touch()
    monkeypatch.setattr(module, "_train_tokenizer", lambda folder: 1 / 0)
    module.prepare(output)
    assert (output / "marker").exists()
    assert "prepared already" in capsys.readouterr().out


def test_models_of_other_sources_are_not_taken_and_not_lost_before_the_new_ones_are_ready(tmp_path, monkeypatch):
    output = tmp_path / "models"
    output.mkdir()
    (output / STAMP).write_text(json.dumps({"fingerprint": "of something else"}))
    monkeypatch.setattr(module, "_train_tokenizer", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.prepare(output)
    assert (output / STAMP).exists()


def test_every_source_counts():
    every = fingerprint(module.SOURCES)
    assert every == fingerprint(module.SOURCES)
    assert len({every, fingerprint(module.SOURCES[:1]), fingerprint(())}) == 3


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_edit_of_any_file_that_the_preparation_imports_makes_other_models(recipe: str, copy: Path) -> None:
    sources = importlib.import_module(f"recipes.{recipe}.prepare").SOURCES
    files = imported(copy / f"recipes/{recipe}/prepare.py", copy)
    assert len(files) > 5
    assert [file for file in files if not changed_by(file, sources)] == []


def test_an_edit_of_what_only_measures_keeps_the_small_instruct_model(copy: Path) -> None:
    from recipes.smollm2.prepare import SOURCES

    assert changed_by(copy / "recipes/smollm2/requirements.txt", SOURCES)  # which model is converted
    for other in ("recipes/smollm2/measure.py", "recipes/mix_models/prepare.py"):
        assert not changed_by(copy / other, SOURCES), other
