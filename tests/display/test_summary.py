"""Summary at the end of a run."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from verl_comprl.display.progress import Metrics
from verl_comprl.display.run_state import RunState
from verl_comprl.display.summary import results, summary

TOTALS: Metrics = {
    "comprl/bank/size": 128.0,
    "comprl/operations/added": 402.0,
    "comprl/operations/rejected": 1.0,
    "comprl/extractor/updates": 23.0,
    "comprl/extractor/seconds": 85.0,
    "comprl/bank/latency_p50_ms": 1.84,
    "comprl/bank/latency_p95_ms": 3.0,
}


def rendered(state: RunState, totals: Metrics) -> str:
    output = io.StringIO()
    Console(file=output, width=160).print(summary(state, totals))
    return output.getvalue()


def evaluation(with_experience: float, without: float) -> Metrics:
    name = "comprl/eval/success_with"
    return {name: with_experience, f"{name}_low": 0.21, f"{name}_high": 0.678, f"{name}out": without}


def test_the_first_and_the_last_evaluation_are_compared() -> None:
    state = RunState()
    state.evaluations.update({0: evaluation(0.4, 0.3), 15: evaluation(0.45, 0.35), 30: evaluation(0.5, 0.42)})
    text = rendered(state, TOTALS)
    assert "40 % (21 to 68 %) with experience, 30 % without" in text
    assert "50 % (21 to 68 %) with experience, 42 % without" in text
    assert "before training" in text and "after step 30" in text and "45 %" not in text


def test_totals_and_times_of_a_run() -> None:
    state = RunState()
    state.seconds["start"] = 62.4
    metrics = {
        "timing_s/gen": 70.0,
        "timing_s/old_log_prob": 1.0,
        "timing_s/update_actor": 2.5,
        "timing_s/testing": 0.1,
    }
    for step in (1, 2):
        state.record_step(step, 2, metrics)
    text = rendered(state, TOTALS)
    assert "128 entries now; 402 written, 0 updated, 0 merged, 0 discarded; 1 requests" in text
    assert "23 updates" in text and "median 1.8 ms, 95 % within 3.0 ms" in text
    assert "start 62 s, playing 2 min 20 s, actor training 7 s; in the background: extractor training 85 s" in text
    assert "evaluation" not in text, "it took no time worth a word"
    assert "episodes not read" not in text


def test_trouble_of_the_queue_is_named() -> None:
    text = rendered(RunState(), TOTALS | {"comprl/queue/dead": 3.0})
    assert "episodes not read" in text and "3 given up" in text and "0 dropped" in text


def test_the_baseline_has_no_bank() -> None:
    assert "bank" not in rendered(RunState(), {})


def test_results_come_with_commands_that_open_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    saved = {
        "checkpoint": "/run/global_step_30",
        "experience bank": "http://127.0.0.1:6333 bank",
        "all metrics": "/run/m",
    }
    assert results(saved).splitlines() == [
        "Results:",
        "  checkpoint       /run/global_step_30",
        "                     to evaluate it: comprl evaluate --checkpoint /run/global_step_30",
        "  experience bank  http://127.0.0.1:6333 bank",
        "  all metrics      /run/m",
        "                     to look at the run in a browser: comprl view /run --open",
    ]
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    assert ".venv/bin/tensorboard --logdir /t" in results({"learning curves": "/t"}), "not on PATH outside of make"
