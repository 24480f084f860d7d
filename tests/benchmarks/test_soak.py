"""The table of a long run, from samples made by hand; and a sample of this process."""

import json
import os
from pathlib import Path

import psutil

from benchmarks.soak import report, sample


def test_report_compares_an_early_with_a_late_window(tmp_path: Path) -> None:
    run = tmp_path / "runs/complementary-3-1"
    run.mkdir(parents=True)
    steps = [4, 5, 6, 7, 8, 9, 10]
    with (tmp_path / "samples.jsonl").open("w") as samples, (run / "metrics.jsonl").open("w") as metrics:
        for step in steps:
            grows = {"name": "grows", "megabytes": 10.0 * step, "threads": 3, "files": step}
            flat = {"name": "flat", "megabytes": 7.0, "threads": 1, "files": 1}
            short = {"short": {"name": "short", "megabytes": 1.0, "threads": 1, "files": 1}} if step < 6 else {}
            line = {"step": step, "processes": {"1": grows, "2": flat, **short}, "objects": 2}
            print(json.dumps(line), file=samples)
            print(json.dumps({"step": step, "data": {"comprl/queue/depth": 20 - step, "loss": 1}}), file=metrics)
    text = report(tmp_path, first=5, window=2)
    # 5 and 6 against 8 to 10: means 55 and 90
    assert "| `grows` | 55 | 90 | +63.6% | 3 → 3 | 6 → 9 |" in text
    assert "| `flat` | 7 | 7 | +0.0% | 1 → 1 | 1 → 1 |" in text
    assert "short" not in text  # it ended before the late window
    assert "| `comprl/queue/depth` | 16 | 10 |" in text and "loss" not in text


def test_sample_measures_a_process_and_its_children() -> None:
    here = sample(psutil.Process())[str(os.getpid())]
    assert here["megabytes"] > 1 and here["threads"] >= 1 and here["files"] >= 3
