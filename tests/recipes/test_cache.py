"""The cache of prepared models, with files in the place of models."""

from pathlib import Path

import pytest

from recipes.tiny_models import cache
from recipes.tiny_models.cache import cached


def writer(text: str):
    """Return a function that makes a folder with one file."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model").write_text(text)

    return make


def failing(folder: Path) -> None:
    writer("half")(folder)
    raise ValueError("cannot train")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only source file, in a repository of its own."""
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "recipes/tiny_models/cache.py"))
    monkeypatch.setattr(cache, "SOURCES", ())
    source = tmp_path / "recipe.py"
    source.write_text("a = 1")
    return source


def test_a_folder_is_made_once(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = source.parent / "some" / "models"
    assert cached(output, ["recipe.py"], writer("first"), "Toys")
    assert capsys.readouterr().out == ""
    assert not cached(output, ["recipe.py"], failing, "Toys")
    assert capsys.readouterr().out == f"Toys: prepared already, in {output}\n"
    assert (output / "model").read_text() == "first" and list(output.parent.iterdir()) == [output]


def test_a_changed_source_makes_another(source: Path) -> None:
    output = source.parent / "models"
    cached(output, ["recipe.py"], writer("first"), "Toys")
    (output / "more").touch()
    source.write_text("a = 2")
    assert cached(output, ["recipe.py"], writer("second"), "Toys")
    assert (output / "model").read_text() == "second" and not (output / "more").exists()


def test_a_failure_keeps_the_old_folder_and_what_was_written(source: Path) -> None:
    output = source.parent / "models"
    cached(output, ["recipe.py"], writer("first"), "Toys")
    source.write_text("a = 2")
    with pytest.raises(ValueError, match="cannot train"):
        cached(output, ["recipe.py"], failing, "Toys")
    assert (output / "model").read_text() == "first"
    (part,) = output.parent.glob("models.part-*")
    assert (part / "model").read_text() == "half"
    assert cached(output, ["recipe.py"], writer("second"), "Toys")
    assert not part.exists()


def test_a_source_that_changes_during_the_making_does_not_count_as_included(source: Path) -> None:
    output = source.parent / "models"

    def make(folder: Path) -> None:
        writer("first")(folder)
        source.write_text("a = 2")

    assert cached(output, ["recipe.py"], make, "Toys")
    assert cached(output, ["recipe.py"], writer("second"), "Toys")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("recipe.py", "recipe.py is a file; give the path of a folder"),
        ("recipe.py/models", "recipe.py/models cannot be made: Not a directory; give another path"),
        ("/proc/models", "the folder /proc/models cannot be made: No such file or directory; give another path"),
    ],
)
def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_made(
    source: Path, path: str, message: str
) -> None:
    made: list[Path] = []
    with pytest.raises(SystemExit) as caught:
        cached(source.parent / path, ["recipe.py"], made.append, "Toys")
    assert str(caught.value).startswith("error: ") and str(caught.value).endswith(message)
    assert made == [] and source.read_text() == "a = 1" and list(source.parent.iterdir()) == [source]


def test_a_folder_with_files_of_others_is_left_alone(source: Path) -> None:
    folder = source.parent / "projects"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit, match="projects has other files, which would be lost; give another folder"):
        cached(folder, ["recipe.py"], writer("models"), "Toys")
    assert [file.name for file in folder.iterdir()] == ["thesis.tex"]
