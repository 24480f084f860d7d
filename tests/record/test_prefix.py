"""The beginning of a file that is appended to, as a checkpoint notes it, is known again."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.record.prefix import TAIL, Prefix


def prefix_of(folder: Path, content: bytes) -> Prefix:
    file = folder / "lines.jsonl"
    file.write_bytes(content)
    return Prefix.of(file)


@given(kept=st.binary(max_size=20), padding=st.sampled_from([0, TAIL - 10, TAIL, 2 * TAIL]), later=st.binary())
def test_what_a_file_held_begins_it_after_lines_were_appended(
    kept: bytes, padding: int, later: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = b"\n" * padding + kept
    prefix = prefix_of(tmp_path_factory.mktemp("run"), content)
    assert prefix.size == len(content) and prefix.begins(content + later)


def test_lines_that_are_appended_meanwhile_are_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            end = super().seek(offset, whence)
            if whence == 2:
                self.write(b"later\n")
            return end

    monkeypatch.setattr(Path, "open", lambda self, mode: Growing(b"first\n"))
    prefix = Prefix.of(tmp_path / "lines.jsonl")
    assert prefix.size == 6 and prefix.begins(b"first\nlater\n")


@pytest.mark.parametrize("padding", [0, 2 * TAIL])
def test_another_file_does_not_begin_so(tmp_path: Path, padding: int) -> None:
    content = b"\n" * padding + b'{"call": "a"}\n'
    prefix = prefix_of(tmp_path, content)
    assert not prefix.begins(content[:-1]), "lines are missing"
    assert not prefix.begins(content.replace(b"a", b"b") + b"more")


def test_a_missing_file_is_the_beginning_of_any(tmp_path: Path) -> None:
    prefix = Prefix.of(tmp_path / "run" / "lines.jsonl")
    assert prefix.size == 0 and prefix.begins(b"") and prefix.begins(b"more")
