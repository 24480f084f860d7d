"""Lines of JSON that are appended to a file: whole ones or none."""

import os
from pathlib import Path

import pytest

from verl_comprl.record.lines import append_lines, decode, encode


def test_a_line_that_a_kill_has_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append_lines(file, b'{"n":1}\n')
    with file.open("ab") as cut:
        cut.write(b'{"n":2,"te')
    append_lines(file, b'{"n":3}\n{"n":4}\n')
    assert [record["n"] for record in decode(file.read_bytes().splitlines())] == [1, 3, 4]


def test_a_disk_that_fills_up_in_a_line_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = tmp_path / "lines.jsonl", os.write
    append_lines(file, b'{"n":1}\n')
    room = iter([3, 0])

    def fill(descriptor: int, data: bytes) -> int:
        if most := next(room):
            return write(descriptor, data[:most])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(OSError, match="No space left"):
            append_lines(file, b'{"n":2}\n')
    assert file.read_bytes() == b'{"n":1}\n'


def test_whatever_an_environment_shows_can_be_written() -> None:
    record = {"text": "a\ud800b", "numbers": [2**64, -(2**70), 2**63, True]}
    (read,) = decode([encode(record)])
    assert read == {"text": "a\\ud800b", "numbers": [str(2**64), str(-(2**70)), 2**63, True]}
