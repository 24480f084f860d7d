"""Terminal display in a pipe and on a terminal, from the calls that a trainer makes."""

import io
from contextlib import suppress

import pytest
from rich.console import Console

from verl_comprl.display.progress import Metrics, Progress
from verl_comprl.display.terminal import Display

STEP: Metrics = {
    "comprl/guided/success": 0.3125,
    "comprl/free/success": 0.25,
    "comprl/bank/size": 24.0,
    "comprl/extractor/updates": 1.0,
    "timing_s/step": 13.6,
    "timing_s/gen": 6.0,
}
BASELINE: Metrics = {"comprl/free/success": 0.25, "timing_s/step": 13.6}


def pipe() -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    return Display(Console(file=output, soft_wrap=True, highlight=False)), output


def terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Display, io.StringIO]:
    monkeypatch.setenv("TERM", "xterm")
    output = io.StringIO()
    return Display(Console(file=output, force_terminal=True, width=120, height=45, highlight=False)), output


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (STEP, "step 3/30 · success 31 % guided, 25 % free · bank 24 entries · extractor 1 update · 14 s"),
        (STEP | {"timing_s/step": 151.0}, "extractor 1 update · 2 min 31 s"),
        (
            {**BASELINE, "comprl/bank/size": 1.0, "comprl/extractor/updates": 0.0},
            "step 3/30 · success 25 % free (none guided) · bank 1 entry · extractor 0 updates",
        ),
        (
            {**BASELINE, "comprl/bank/size": 1.0},
            "step 3/30 · success 25 % free (none guided) · bank 1 entry · extractor frozen",
        ),
        (
            {**BASELINE, "comprl/collect_timeouts": 1.0, "comprl/extractor/updates": 2.0},
            "step 3/30 · success 25 % free (none guided) · bank - · extractor 2 updates",
        ),
        (BASELINE, "step 3/30 · success 25 % · 14 s"),
    ],
)
def test_a_step_is_one_line_in_a_pipe(metrics: Metrics, line: str) -> None:
    display, output = pipe()
    display.activity("step 3")
    display.step(3, 30, metrics)
    assert line in output.getvalue() and output.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("step", "metrics", "line"),
    [
        (
            0,
            {"comprl/eval/success_with": 0.40625, "comprl/eval/success_without": 0.4375},
            "evaluation before training · success 41 % with experience, 44 % without\n",
        ),
        (15, {"comprl/eval/success_without": 0.5}, "evaluation after step 15 · success 50 %\n"),
        (15, {"comprl/eval/success_with": 0.5}, "evaluation after step 15 · success 50 % with experience, - without\n"),
    ],
)
def test_an_evaluation_is_one_line(step: int, metrics: Metrics, line: str) -> None:
    display, output = pipe()
    display.evaluation(step, metrics)
    assert output.getvalue() == line


def test_an_evaluation_comes_after_the_line_of_its_step() -> None:
    display, output = pipe()
    display.evaluation(0, {"comprl/eval/success_without": 0.5})
    display.step(1, 2, BASELINE)
    display.evaluation(2, {"comprl/eval/success_without": 0.75})
    display.step(2, 2, BASELINE)
    starts = [line.partition(" ·")[0] for line in output.getvalue().splitlines()]
    assert starts == ["evaluation before training", "step 1/2", "step 2/2", "evaluation after step 2"]


def test_a_phase_is_announced_and_timed() -> None:
    display, output = pipe()
    with display.phase("start", "starting models"):
        assert output.getvalue() == "starting models …\n"
    assert output.getvalue().splitlines()[1] == "starting models: done after 0 s"


def test_text_is_printed_as_it_is() -> None:
    display, output = pipe()
    long = "data.train_files=[/a,/b] [bold]" + "x" * 200
    display.note(long)
    display.fail("trainer.logger=[console]")
    assert output.getvalue() == f"{long}\nerror: trainer.logger=[console]\n"


def test_the_live_view_shows_the_latest_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    display, output = terminal(monkeypatch)
    display.activity("starting models")
    display.evaluation(0, {"comprl/eval/success_with": 0.4, "comprl/eval/success_without": 0.3})
    display.step(1, 30, STEP)
    display.step(2, 30, STEP | {"timing_s/step": 26.4, "comprl/guided/success": 0.5})
    display.activity("evaluating")
    display.note("a line above the view")
    display.close()
    shown = output.getvalue()
    last = shown[shown.rindex("step 2/30") :]
    assert "20 s per step" in last and "about 9 min 20 s left" in last  # 28 steps of (13.6 + 26.4) / 2 seconds
    assert "50 % guided, 25 % free" in last
    assert "40 % with experience, 30 % without (before training)" in last
    assert "24 entries" in last and "1 update" in last and "evaluating (" in last
    assert "a line above the view" in shown


def test_without_a_live_view_a_terminal_gets_the_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    output = io.StringIO()
    display = Display(Console(file=output, force_terminal=True, width=200, highlight=False), live=False)
    display.activity("step 1")
    display.step(1, 2, BASELINE)
    assert output.getvalue() == "step 1/2 · success 25 % · 14 s\n"


def test_an_error_ends_the_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    display, output = terminal(monkeypatch)
    display.activity("step 1")
    display.fail("disk full")
    before = output.getvalue()
    display.activity("step 2")
    assert "disk full" in before and output.getvalue() == before


def test_the_interface_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.activity("a")
    progress.evaluation(0, {})
    progress.step(1, 2, {})
    progress.finish({}, {})
    assert capsys.readouterr() == ("", "")


def test_notes_and_errors_are_shown_without_secrets() -> None:
    output = io.StringIO()
    display = Display(Console(file=output), clean=lambda text: text.replace("secret", "***"))
    display.note("a note with a secret")
    display.fail("refused: secret")
    assert output.getvalue() == "a note with a ***\nerror: refused: ***\n"


def test_what_others_say_gives_no_orders_to_a_terminal() -> None:
    output = io.StringIO()
    Display(Console(file=output)).fail("bad \x1b]0;title\x07 \x1b[2J\u202e\nnext line")
    assert output.getvalue() == "error: bad  ]0;title   [2J \nnext line\n"


def test_a_full_disk_under_standard_output_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        display = Display()
        display.note("a line")
        display.step(3, 30, STEP)
        display.fail("an error")
        patch.undo()
        with suppress(OSError):
            full.close()
