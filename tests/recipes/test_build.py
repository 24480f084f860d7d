"""The two training processes, with files in the place of models."""

from pathlib import Path

import pytest

from recipes.tiny_models.build import build


def write_tokenizer(folder: Path) -> None:
    folder.mkdir()
    (folder / "words").write_text("a b")


def write_actor(folder: Path) -> None:
    (folder / "actor").write_text((folder / "tokenizer/words").read_text() + " actor")


def write_extractor(folder: Path) -> None:
    (folder / "extractor").write_text((folder / "tokenizer/words").read_text() + " extractor")


def fail(folder: Path) -> None:
    raise SystemExit(3)


def test_both_are_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "some" / "models"
    assert build(output, sources=(), tokenizer=write_tokenizer, actor=write_actor, extractor=write_extractor)
    assert (output / "actor").read_text() == "a b actor" and (output / "extractor").read_text() == "a b extractor"
    assert not (output / "tokenizer").exists() and list(output.parent.iterdir()) == [output]
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("Models: building two small ones") and last.endswith(f" s, in {output}")
    assert not build(output, sources=(), tokenizer=fail, actor=fail, extractor=fail)
    assert capsys.readouterr().out == f"Models: prepared already, in {output}\n"


def test_a_process_that_fails_is_reported_with_what_it_left(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="building the models failed") as caught:
        build(tmp_path / "models", sources=(), tokenizer=write_tokenizer, actor=write_actor, extractor=fail)
    (part,) = tmp_path.iterdir()
    assert str(part) in str(caught.value) and (part / "actor").exists() and not (part / "extractor").exists()
