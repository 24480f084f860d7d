"""The command ``comprl view``."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verl_comprl.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of which there are metrics only."""
    (tmp_path / "run").mkdir()
    line = {"step": 1, "data": {"comprl/bank/size": 3}}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path / "run"


def test_one_run_is_written_into_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["view", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder / 'view.html'} (")
    assert (folder / "view.html").read_text().startswith("<!doctype html>")


def test_several_runs_are_written_where_one_is(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(folder, tmp_path / "other")
    assert main.main(["view", str(folder), str(other)]) == 0 and (tmp_path / "view.html").exists()
    assert main.main(["view", str(folder), "--output", "new/page.html"]) == 0
    assert (tmp_path / "new" / "page.html").exists()


def test_a_run_that_is_named_twice_is_shown_once(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["view", str(folder), "run/../run"]) == 0
    assert (folder / "view.html").read_text().count('id="run') == (folder / "view.html").read_text().count('id="run0')
    assert not (tmp_path / "view.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not"),
        ([".", "--episodes", "-1"], "-1 episodes: the number must be at least 0"),
        ([".", "--output", ""], "--output is empty; name a file, such as view.html"),
    ],
)
def test_what_cannot_be_shown_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["view", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"comprl view: {message}")


def test_a_mistyped_folder_and_a_folder_as_output_leave_nothing_behind(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main.main(["view", "rum"]) == 2
    assert capsys.readouterr().err == "comprl view: rum is not a folder of a run: it does not exist\n"
    assert main.main(["view", "run/metrics.jsonl"]) == 2
    assert capsys.readouterr().err == "comprl view: run/metrics.jsonl is not a folder of a run: it is a file\n"
    for output in ("run", "/", "new/"):
        assert main.main(["view", "run", "--output", output]) == 2
        assert f"--output {output} is a folder; name a file, such as " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_stays_a_link_and_a_pipe_a_pipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(pipe := folder.parent / "pipe")
    assert main.main(["view", str(folder), "--output", str(pipe)]) == 2
    assert capsys.readouterr().err == f"comprl view: --output {pipe} is not a regular file\n"
    assert pipe.is_fifo()
    (target := folder.parent / "target.html").write_text("old")
    (link := folder.parent / "link.html").symlink_to(target.name)
    assert main.main(["view", str(folder), "--output", str(link)]) == 0
    assert link.is_symlink() and target.read_text().startswith("<!")


def test_nothing_is_written_through_links_of_a_folder_that_somebody_sent(folder: Path) -> None:
    (victim := folder.parent / "notes").write_text("mine")
    (page := folder / "view.html").symlink_to(victim)
    (building := folder / ".view.html.building").symlink_to(victim)
    assert main.main(["view", str(folder)]) == 0
    assert victim.read_text() == "mine"
    assert page.read_text().startswith("<!") and not page.is_symlink() and not building.is_symlink()


def test_a_pipe_in_the_place_of_the_unfinished_page_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / ".view.html.building")
    command = [sys.executable, "-m", "verl_comprl.cli.main", "view", str(folder)]
    assert subprocess.run(command, timeout=60).returncode == 0
    assert sorted(file.name for file in folder.iterdir()) == ["metrics.jsonl", "view.html"]


def test_a_run_that_is_a_link_to_itself_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (loop := folder.parent / "loop").symlink_to("loop")
    assert main.main(["view", str(loop)]) == 2
    assert capsys.readouterr().err.startswith(f"comprl view: {loop} is not a folder of a run: ")


def test_a_file_that_cannot_be_written_is_called_what_the_user_calls_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["view", str(folder), "--output", "/proc/x.html"]) == 2
    expected = "comprl view: --output /proc/x.html cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == expected
    (folder.parent / "note").touch()
    assert main.main(["view", str(folder), "--output", str(folder.parent / "note" / "new" / "x.html")]) == 2
    assert capsys.readouterr().err == (
        f"comprl view: --output {folder.parent / 'note' / 'new' / 'x.html'} cannot be written: Not a directory\n"
    )


def test_a_run_that_cannot_be_read_is_not_taken_for_an_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "evaluations.jsonl").mkdir()
    assert main.main(["view", str(folder), "--output", str(folder.parent / "x.html")]) == 2
    assert capsys.readouterr().err.endswith(f"Is a directory: '{folder / 'evaluations.jsonl'}'\n")


def test_the_viewer_imports_neither_verl_nor_torch() -> None:
    program = (
        "import sys, verl_comprl.viewer.view\n"
        "print([name for name in ('verl', 'torch', 'ray', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
