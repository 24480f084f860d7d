"""The page at several widths."""

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import halves, write_run

from verl_comprl.watch.page import Page
from verl_comprl.watch.watched_run import WatchedRun

EVALUATION = {
    "comprl/eval/success_with": 0.8,
    "comprl/eval/success_with_low": 0.75,
    "comprl/eval/success_with_high": 0.85,
    "comprl/eval/success_without": 0.2,
}
STEPS = {
    step: halves(
        step / 20,
        0.25,
        guided__actions=3.0,
        bank__size=24.0,
        bank__uses_per_entry=0.75,
        extractor__updates=2.0,
        extractor__reward=-0.5,
    )
    | {"actor/perf/max_memory_allocated_gb": 1.5}
    for step in range(1, 16)
}


def shown(folder: Path, width: int, silent: float = 0) -> str:
    os.utime(folder / "metrics.jsonl")
    run = WatchedRun(folder, clock=lambda: time.time() + silent)
    run.refresh()
    output = io.StringIO()
    Console(file=output, width=width, markup=False).print(Page(run, hint="q quits"))
    return output.getvalue()


def row(page: str, name: str) -> list[str]:
    return next(line for line in page.splitlines() if line.strip().startswith(name)).split()


def test_of_a_silent_run_no_time_is_told_that_it_will_take(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", STEPS)
    assert " left" in shown(folder, 120)
    assert " left" not in shown(folder, 120, silent=3600)


def test_a_wide_page_has_it_all(tmp_path: Path) -> None:
    page = shown(write_run(tmp_path / "run", STEPS | {15: STEPS[15] | EVALUATION}), 120)
    assert page.startswith("complementary · running") and "step 15/60" in page
    assert "5.0 s per step · about 3 min 45 s left" in page
    guided = row(page, "guided")
    assert guided[:5] == ["guided", "75", "%", "52", "%"]  # 0.75 now; 0.30 to 0.75 in the last ten steps
    assert guided[5:] == ["▁▁▂▂▃▃▃▄▄▅▅▅▆▆▇", "3.0", "actions", "per", "episode"]
    assert row(page, "with experience")[2:] == ["80", "%", "▇", "95", "%", "interval", "75", "to", "85", "%"]
    assert row(page, "without")[1:3] == ["20", "%"] and "after step 15" in page
    assert row(page, "extractor") == ["extractor", "2", "updates"] and row(page, "reward")[1:3] == ["-0.50", "-0.50"]
    assert row(page, "bank")[:3] == ["bank", "24", "entries"] and "0.75 uses per written entry" in page
    assert row(page, "memory of actor")[3:5] == ["1.5", "GB"]
    assert page.splitlines()[2].endswith("ago · q quits")


@pytest.mark.parametrize("width", [96, 104, 150])
def test_remarks_are_whole_where_there_is_room_for_them(tmp_path: Path, width: int) -> None:
    page = shown(write_run(tmp_path / "run", STEPS | {15: STEPS[15] | EVALUATION | {"timing_s/testing": 15.0}}), width)
    _, *body = page.splitlines()  # the first line names the folder, which is cut where it is long
    remarks = " ".join(line.rpartition("  ")[2].strip() for line in map(str.rstrip, body))
    assert "within - ms" in remarks and "samples to train on" in remarks and "…" not in "".join(body)
    # 45 s of playing and 15 s of an evaluation, which the 5 s of a step leave out.
    assert row(page, "time per step")[3:7] == ["5.0", "s", "5.0", "s"]
    assert "of the run: playing 75 %, evaluation 25 %" in remarks


@pytest.mark.parametrize("width", [30, 50, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    page = shown(write_run(tmp_path / "run", STEPS | {15: STEPS[15] | EVALUATION}), width)
    assert max(map(len, page.splitlines())) <= width
    assert all(name in page for name in ("guided", "free", "reward", "bank", "step 15/60"))


def test_a_baseline_has_neither_halves_nor_bank(tmp_path: Path) -> None:
    steps = {1: {"comprl/free/rollouts": 8.0, "comprl/free/success": 0.5, "timing_s/step": 4.0}}
    page = shown(write_run(tmp_path / "run", steps, arm="baseline"), 120)
    assert row(page, "all episodes")[2:4] == ["50", "%"]
    assert not any(word in page for word in ("guided", "bank", "extractor"))


def test_a_step_that_the_manager_did_not_close_is_no_baseline(tmp_path: Path) -> None:
    steps = {1: STEPS[1], 2: halves(0.5, 0.25, collect_timeouts=1.0, extractor__updates=2.0)}
    page = shown(write_run(tmp_path / "run", steps), 120)
    assert row(page, "guided")[1:3] == ["50", "%"] and row(page, "extractor") == ["extractor", "2", "updates"]
    assert row(page, "bank")[:3] == ["bank", "-", "entries"] and "1 step that the manager did not close" in page


def test_what_went_wrong_is_on_the_page(tmp_path: Path) -> None:
    page = shown(write_run(tmp_path / "run", {1: halves(0.5, 0.25, rollouts__failed__server=2.0)}), 80)
    assert "! 2 rollouts failed: server" in page and "train.log" in page.replace("\n", "")  # the path may be broken


def test_a_folder_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    page = shown(write_run(tmp_path / "run\x1b[2J", {1: halves(0.5, 0.25, rollouts__failed__server=2.0)}), 200)
    assert "\x1b" not in page and page.count("run [2J") == 2


def test_a_step_without_its_memory_has_no_number(tmp_path: Path) -> None:
    page = shown(write_run(tmp_path / "run", STEPS | {16: halves(0.5, 0.25)}), 120)
    assert row(page, "memory of actor")[3] == "-" and "nan" not in page


def test_a_low_terminal_shows_what_went_wrong_and_how_to_quit(tmp_path: Path) -> None:
    """Of 80 columns and 24 lines, of which the last ones are cut off."""
    failed = {f"rollouts__failed__{name}": 2.0 for name in ("server", "environment", "manager")}
    last = STEPS[15] | EVALUATION | halves(0.5, 0.25, extractor__away=1.0, queue__dead=1.0, **failed)
    lines = shown(write_run(tmp_path / "run", STEPS | {15: last}), 80).splitlines()
    assert len(lines) > 24
    assert sum(line.startswith("!") for line in lines[:24]) == 5
    assert sum("q quits" in line for line in lines[:24]) == 1


def test_a_run_without_a_step_has_a_page(tmp_path: Path) -> None:
    page = shown(write_run(tmp_path / "run", {}), 80)
    assert page.startswith("complementary · starting") and "step 0/60" in page and "success" not in page
