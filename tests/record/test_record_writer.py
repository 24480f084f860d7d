"""The writer's thread, and what it survives."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)

from verl_comprl.record import writer as writer_module
from verl_comprl.record.lines import decode
from verl_comprl.record.writer import MOST_WAITING, RecordWriter


def written(writer: RecordWriter) -> dict[int, list[dict[str, Any]]]:
    writer.close(60)
    return {step: list(decode(writer.files.read(step))) for step in writer.files.steps()}


def test_records_are_written_in_order_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-very-secret-value")
    writer = RecordWriter(tmp_path / "run" / "episodes", keep_steps=2)
    for step in range(1, 5):
        writer.write(step, [{"n": step}, {"text": "it is a-very-secret-value."}], 2)
    writer.write(4, lambda: iter([{"n": 40}]), 1)
    secret = {"text": "it is ***."}
    assert written(writer) == {3: [{"n": 3}, secret], 4: [{"n": 4}, secret, {"n": 40}]}
    assert writer.lost == 0 and writer.seconds > 0


def test_nothing_is_written_without_records(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "episodes")
    writer.write(1, [], 0)
    assert written(writer) == {} and not (tmp_path / "episodes").exists()


def test_failures_are_counted_logged_once_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = RecordWriter(tmp_path / "episodes")
    (tmp_path / "episodes").write_text("a file is in the way")
    done = threading.Event()

    def broken() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise RuntimeError("TransferQueue is gone")

    def last() -> list[dict[str, Any]]:
        done.set()  # writes are made in order, so those before it have ended
        return []

    with caplog.at_level(logging.WARNING):
        writer.write(1, [{"n": 1}, {"n": 2}], 2)
        writer.write(2, broken, 5)
        writer.write(2, last, 0)
        assert done.wait(60)
        (tmp_path / "episodes").unlink()
        writer.write(3, [{"n": 3}], 1)
        assert written(writer) == {3: [{"n": 3}]}
    assert writer.lost == 7
    (message,) = [record.getMessage() for record in ours(caplog)]
    assert str(tmp_path / "episodes") in message and "NotADirectoryError" in message


def test_a_disk_that_hangs_neither_blocks_nor_fills_the_memory(tmp_path: Path) -> None:
    writer, there = RecordWriter(tmp_path), threading.Event()

    def slow() -> list[dict[str, Any]]:
        assert there.wait(60)
        return [{}]

    for step in range(MOST_WAITING + 3):
        writer.write(step, slow, 2)
    assert writer.lost == 3 * 2
    there.set()
    assert len(written(writer)) == MOST_WAITING


def test_what_is_not_written_in_time_or_comes_too_late_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer, begun, there = RecordWriter(tmp_path), threading.Event(), threading.Event()

    def slow() -> list[dict[str, Any]]:
        begun.set()
        assert there.wait(60)
        return [{}]

    with caplog.at_level(logging.WARNING):
        writer.write(1, slow, 1)
        assert begun.wait(60)
        writer.write(2, [{}, {}], 2)
        writer.close(0.01)
        assert writer.lost == 2
        writer.write(3, [{}, {}, {}], 3)
        assert writer.lost == 5
        there.set()
    (message,) = [record.getMessage() for record in ours(caplog)]
    assert "closed" in message


def test_a_checkpoint_waits_for_what_is_being_written_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, there = RecordWriter(tmp_path), threading.Event()

    def slow() -> list[dict[str, Any]]:
        assert there.wait(60)
        return [{"n": 1}]

    writer.write(1, slow, 1)
    monkeypatch.setattr(writer_module, "SETTLE_SECONDS", 0.01)
    writer.settle()
    assert writer.files.steps() == [] and writer.lost == 0
    monkeypatch.setattr(writer_module, "SETTLE_SECONDS", 60)
    threading.Timer(0.2, there.set).start()
    writer.settle()
    assert list(decode(writer.files.read(1))) == [{"n": 1}]
    writer.write(2, [{}], 1)  # nothing is closed
    assert writer.lost == 0 and set(written(writer)) == {1, 2}


def test_a_process_ends_though_a_write_hangs(tmp_path: Path) -> None:
    program = f"""
import threading
from pathlib import Path
from verl_comprl.record.writer import RecordWriter
writer = RecordWriter(Path({str(tmp_path)!r}))
begun = threading.Event()
writer.write(1, lambda: begun.set() or threading.Event().wait(), 1)
assert begun.wait(60)
writer.write(2, [{{}}], 1)
writer.close(0.01)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []
