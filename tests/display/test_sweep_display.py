"""Display of a sweep in a pipe: a line per run, and the rest in the run's log."""

import io

import pytest
from rich.console import Console

from verl_comprl.display.announcer import settle
from verl_comprl.display.sweep import RunDisplay, SweepDisplay


def console() -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, soft_wrap=True, highlight=False), output


def test_a_run_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    made, output = console()
    display = RunDisplay(made)
    with display.phase("start", "starting the models"):
        pass
    display.step(1, 2, {"comprl/free/success": 0.25, "timing_s/step": 2.0})
    display.evaluation(1, {"comprl/eval/success_without": 0.5})
    display.finish({"comprl/bank/size": 4.0}, {"all metrics": "metrics.jsonl"})
    assert output.getvalue() == ""
    log = capsys.readouterr().out  # which a sweep sends to the run's log
    assert "step 1/2 · success 25 % · 2 s\n" in log and "evaluation after step 1 · success 50 %\n" in log
    display.announce("stopping")
    settle()
    assert output.getvalue() == "stopping\n"


def test_outcome_and_metrics_are_the_last_ones() -> None:
    display = RunDisplay(console()[0])
    assert (display.outcome(), display.metrics()) == ("", {})
    for step, share in ((1, 0.25), (2, 0.75)):
        display.step(step, 2, {"comprl/free/success": share, "name": "text"})  # pyright: ignore[reportArgumentType]
    assert display.outcome() == "success 75 %"
    for step, share in ((0, 0.125), (2, 0.5)):
        display.evaluation(step, {"comprl/eval/success_without": share})
    display.finish({"comprl/bank/size": 4.0}, {})
    assert display.outcome() == "success 50 %"
    expected = {"comprl/free/success": 0.75, "comprl/eval/success_without": 0.5, "comprl/bank/size": 4.0}
    assert display.metrics() == expected


def test_a_line_per_run() -> None:
    made, output = console()
    display = SweepDisplay(12, made)
    display.ended(3, "arm=baseline", "finished", 84.2, "success 31 %")
    display.ended(4, "arm=offline", "finished before", 0.0, "")
    assert output.getvalue().splitlines() == [
        "run 3/12 arm=baseline: finished after 84 s · success 31 %",
        "run 4/12 arm=offline: finished before",
    ]
