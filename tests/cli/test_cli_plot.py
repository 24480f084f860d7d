"""``comprl plot`` from the command line."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import halves, write_run

from verl_comprl.cli import main

STEPS = {step: halves(0.5, 0.25) for step in range(1, 4)}


def test_figures_are_named_and_missing_ones_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / str(seed), STEPS, seed=seed)) for seed in (1, 2)]
    assert main.main(["plot", *runs, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    out = tmp_path / "out"
    assert f"success: {out / 'success.png'}, {out / 'success.svg'}\n" in shown.out
    assert "bank: no run has its metrics yet\n" in shown.out and not shown.err
    assert {file.stem for file in out.iterdir()} == {"success", "guided_free", "rollout_time"}


def test_runs_that_are_not_seeds_of_one_thing_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / str(size), STEPS, bank={"capacity": size})) for size in (8, 16)]
    assert main.main(["plot", *runs, "--output", str(tmp_path / "out")]) == 0
    assert "2 runs of complementary differ in comprl.bank.capacity; see --by" in capsys.readouterr().err


def test_nothing_to_draw_and_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(write_run(tmp_path / "run", {}))
    starting = tmp_path / "starting"
    starting.mkdir()
    (starting / "train.log").touch()
    assert main.main(["plot", str(starting), "--output", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"comprl plot: {starting} is not the folder of a run: it has no config.yaml yet; "
        "the run writes it when its models have started"
    )
    assert main.main(["plot", run, "--output", str(tmp_path / "out")]) == 1
    file = starting / "train.log"
    assert main.main(["plot", run, "--output", str(file)]) == 2
    assert capsys.readouterr().err.endswith(f"--output {file} is a file; name the folder of the figures\n")
    assert main.main(["plot", run, "--output", str(tmp_path / "out"), "--window", "0"]) == 2
    assert main.main(["plot", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert (
        "--window 0 must be at least 1" in shown and "comprl plot: " in shown and "is not the folder of a run" in shown
    )


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(write_run(tmp_path / "run", STEPS))
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "verl_comprl.plot"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("verl_comprl.requirements.version_of", lambda _: None)
    assert main.main(["plot", run, "--output", str(tmp_path / "out")]) == 2
    assert "pip install 'verl-comprl[plot]'" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from verl_comprl.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print({'matplotlib', 'rich', 'torch', 'verl', 'ray'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


def test_plotting_loads_neither_torch_nor_verl(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", STEPS)
    program = (
        "import sys; from verl_comprl.cli.main import main\n"
        f"code = main(['plot', {str(run)!r}, '--output', {str(tmp_path / 'out')!r}])\n"
        "print(code, [name for name in ('torch', 'verl', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
