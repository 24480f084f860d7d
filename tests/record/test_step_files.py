"""Files of a folder of steps: what is written comes back, whatever happens to them in between."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_comprl.record.lines import decode, encode
from verl_comprl.record.step_files import StepFiles

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
RECORD = st.dictionaries(st.text(), JSON, max_size=4)


def add(files: StepFiles, step: int, *records: dict[str, Any]) -> None:
    files.append(step, [encode(record) + b"\n" for record in records])


def content(files: StepFiles) -> dict[int, list[dict[str, Any]]]:
    return {step: list(decode(files.read(step))) for step in files.steps()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.lists(RECORD, min_size=1, max_size=3)), max_size=6))
def test_what_is_appended_is_read(appended: list[tuple[int, list[dict[str, Any]]]]) -> None:
    expected: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = StepFiles(Path(folder) / "episodes")
        for step, records in appended:
            add(files, step, *records)
            expected.setdefault(step, []).extend(records)
        assert content(files) == dict(sorted(expected.items()))
        # What anybody else would read it with says the same.
        for step, records in expected.items():
            with gzip.open(files.file(step), "rt", encoding="utf-8", newline="\n") as lines:
                assert [json.loads(line) for line in lines] == records


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.data())
def test_a_torn_file_has_its_beginning_and_can_be_continued(numbers: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = StepFiles(Path(folder))
        add(files, 1, *({"n": number} for number in numbers))
        whole = files.file(1).read_bytes()
        files.file(1).write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        left = [record["n"] for record in decode(files.read(1))]
        assert left == numbers[: len(left)]
        add(files, 1, {"n": -1})
        assert [record["n"] for record in decode(files.read(1))] == [*left, -1]


@pytest.mark.parametrize("damage", [b"", b"not gzip", b"\x1f\x8b\x08\x00"])
def test_a_file_that_is_no_gzip_is_empty(tmp_path: Path, damage: bytes) -> None:
    files = StepFiles(tmp_path)
    files.file(3).write_bytes(damage)
    assert content(files) == {3: []} and list(files.read(4)) == []


def test_lines_that_are_no_objects_are_left_out() -> None:
    lines = [b'{"a": 1}\n', b'{"a": \n', b"\xff\xfe\n", b"[1]\n", b"\n", b'{"a": 2}\n', b'{"a": 3']
    assert list(decode(lines)) == [{"a": 1}, {"a": 2}]


def test_text_that_is_not_unicode_is_escaped() -> None:
    assert json.loads(encode({"screen": "a\udcffb", "deep": [{"\ud800": "\ud800"}], "fine": "ä"})) == {
        "screen": "a\\udcffb",
        "deep": [{"\\ud800": "\\ud800"}],
        "fine": "ä",
    }


def test_a_killed_writer_leaves_whole_files(tmp_path: Path) -> None:
    """It appends to one step for ever, and is killed at some moment of that."""
    code = (
        "import sys; from pathlib import Path; from verl_comprl.record.step_files import StepFiles\n"
        "files = StepFiles(Path(sys.argv[1])); n = 0\n"
        "while True:\n"
        "    files.append(1, [b'{\"n\": %d}\\n' % n]); n += 1\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        said = [int(process.stdout.readline()) for _ in range(30)][-1]
        process.kill()
    found = [record["n"] for record in decode(StepFiles(tmp_path).read(1))]
    assert found == list(range(len(found))) and len(found) >= said
    assert StepFiles(tmp_path).steps() == [1]


@pytest.mark.parametrize(
    ("most", "left"), [(None, [1, 2, 9, 10, 11]), (2, [10, 11]), (5, [1, 2, 9, 10, 11]), (9, [1, 2, 9, 10, 11])]
)
def test_the_latest_steps_are_kept(tmp_path: Path, most: int | None, left: list[int]) -> None:
    files = StepFiles(tmp_path)
    for step in (1, 2, 9, 10, 11):  # 10 comes before 9 among names
        add(files, step, {})
    files.keep(most)
    assert files.steps() == left


@pytest.mark.parametrize(
    ("step", "left", "aside"), [(2, [1, 2], [3, 10]), (10, [1, 2, 3, 10], []), (-1, [], [1, 2, 3, 10])]
)
def test_a_resumed_run_puts_later_steps_aside(tmp_path: Path, step: int, left: list[int], aside: list[int]) -> None:
    files = StepFiles(tmp_path / "episodes")
    files.rewind(5)  # there is nothing yet
    for number in (1, 2, 3, 10):
        add(files, number, {"step": number})
    files.rewind(step)
    assert files.steps() == left
    folders = [folder for folder in tmp_path.iterdir() if folder.name != "episodes"]
    assert [StepFiles(folder).steps() for folder in folders] == ([aside] if aside else [])


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StepFiles(tmp_path)
    add(files, 1, {"n": 1})

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        add(files, 1, {"n": 2})
    assert content(files) == {1: [{"n": 1}]}
    assert os.listdir(tmp_path) == ["step_1.jsonl.gz"]


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a disk or a network that fails for a moment."""
    files = StepFiles(tmp_path)
    add(files, 1, {"n": 1})

    def fail(file: Path) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.record.step_files.gzip.open", fail)
        with pytest.raises(OSError, match="Input/output error"):
            add(files, 1, {"n": 2})
    add(files, 1, {"n": 3})
    assert content(files) == {1: [{"n": 1}, {"n": 3}]}
