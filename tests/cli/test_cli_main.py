"""The entry point: exit codes and messages."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from embedding_endpoint import EmbeddingEndpoint

from verl_comprl import __version__
from verl_comprl.cli import data, main, train

RUN = Path(__file__).parents[2] / "examples/run"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and all(f"    {name} " in shown for name in ("train", "data", "doctor"))


@pytest.mark.parametrize(("given", "longest"), [([], "completion"), (["bank"], "quarantine")])
def test_the_longest_command_has_its_help_on_its_line(
    given: list[str], longest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main.main([*given, "--help"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"    {longest} ")]
    assert line.removeprefix(f"    {longest}").strip()


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"comprl {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["data"], ["data", "minihack", "--split", "test"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    assert caught.value.code == 2 and "usage: comprl" in capsys.readouterr().err


def test_a_library_that_breaks_a_training_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> int:
        raise ImportError("libcudart.so.99: cannot open shared object file")

    monkeypatch.setattr(train, "run", fail)
    assert main.main(["train", "a=b"]) == 2
    assert capsys.readouterr().out == "error: libcudart.so.99: cannot open shared object file\n"


@pytest.mark.parametrize("error", [ValueError("seven is odd"), ImportError("no nle"), OSError("disk full")])
def test_an_expected_error_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> int:
        raise error

    monkeypatch.setattr(data, "run", fail)
    arguments = ["data", "minihack", "--split", "train", "--count", "1", "--output", "x.parquet"]
    assert main.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err == f"comprl data: {error}\n" and shown.out == ""


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(data, "run", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts behind ignore it
    try:
        assert main.main(["data", "minihack", "--split", "train", "--output", "x.parquet"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "comprl data: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["completion", "bash"], 1),
        (["env", "list"], 1),
        (["train", "--help"], 1),
        (["train", "--info", "defaults-tree"], 0),  # logged line by line, and nobody asks whether it arrived
    ],
    ids=str,
)
def test_an_output_that_nobody_reads_ends_the_command_without_a_word(arguments: list[str], code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "verl_comprl.cli.main", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", code)


def test_a_connection_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(data, "run", fail)
    assert main.main(["data", "minihack", "--split", "train", "--output", "x.parquet"]) == 2
    assert capfd.readouterr().err == "comprl data: [Errno 32] Broken pipe\n"


def test_train_gets_the_rest_of_the_line_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def train(arguments: list[str]) -> int:
        given.append(arguments)
        return 130

    import verl_comprl.train

    monkeypatch.setattr(verl_comprl.train, "main", train)
    overrides = ["--config-name=recipe", "trainer.total_epochs=1", "+a=[1,2]", "--help"]
    monkeypatch.setattr(sys, "argv", ["comprl", "train", *overrides])
    assert main.main() == 130 and given == [overrides]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bnak"], "unknown 'bnak'; did you mean bank? allowed: train, watch, view"),
        (["bank", "serch"], "unknown 'serch'; did you mean search? allowed: stats"),
        (["data", "minihack", "--split", "trian"], "unknown 'trian'; did you mean train? allowed: train, val"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    assert caught.value.code == 2 and expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "expected"),
    [
        (["view", "--ouput", "x"], "comprl view", "unrecognized arguments: --ouput; unknown '--ouput', did you mean"),
        (["view", "x", "--ouput=y"], "comprl view", "--ouput=y; unknown '--ouput', did you mean --output?"),
        (["bank", "show", "a", "--path", "b", "--jsn"], "comprl bank show", "unknown '--jsn', did you mean --json?"),
        (["evaluate", "--chekpoint", "x"], "comprl evaluate", "unknown '--chekpoint', did you mean --checkpoint?"),
        (["view", "x", "y", "--zzz"], "comprl view", "comprl view: error: unrecognized arguments: --zzz\n"),
    ],
)
def test_a_wrong_option_is_answered_with_the_nearest_and_its_commands_usage(
    arguments: list[str], usage: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    shown = capsys.readouterr().err
    assert caught.value.code == 2 and shown.startswith(f"usage: {usage} [-h]") and expected in shown


def test_only_unknown_options_get_a_hint_and_abbreviated_ones_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["data", "minihack", "--splt", "train", "--outp", "x"])
    (hint,) = capsys.readouterr().err.splitlines()[-1].split("; ")[1:]
    assert hint == "unknown '--splt', did you mean --split?"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["env", "play", "mnihack"], "comprl env: unknown environment 'mnihack'; did you mean minihack? known: "),
        (
            ["env", "play", "vaults", "-o", "wrld=1"],
            "comprl env: environment 'vaults' has no option 'wrld'; did",
        ),
        (
            ["env", "play", "minihack", "--variant", "room-ultimat"],
            "comprl env: unknown MiniHack variant 'room-ultimat'; did you mean room-ultimate? known: room, ",
        ),
        (
            ["env", "play", "sokoban", "-o", "difficulty=eas"],
            "comprl env: unknown difficulty 'eas'; did you mean easy? known: easy, ",
        ),
        (["env", "play", "sokoban", "-o", "size=9"], "comprl env: unknown size 9; known: 6, 7, 8"),
    ],
)
def test_a_wrong_environment_or_option_is_answered_with_the_nearest(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    assert capsys.readouterr().err.startswith(expected)


def test_help_costs_less_than_three_tenths_of_a_second() -> None:
    program = (
        "import resource; from verl_comprl.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    )

    def cost() -> float:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return float(done.stdout.splitlines()[-1])

    assert any(cost() < 0.3 for _ in range(10))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["completion", "bash"],
        ["env", "list"],
        ["watch", str(RUN), "--once"],
        ["view", str(RUN), "--output", "view.html"],
        ["plot", str(RUN), "--output", "figures"],
        ["data", "vaults", "--split", "train", "--count", "2", "--output", "train.parquet"],
        ["env", "play", "vaults"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_neither_verl_nor_torch_does_not_load_them(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from verl_comprl.cli.main import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, [name for name in ('verl', 'torch', 'ray') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_bank_commands_load_no_torch_where_the_embedder_is_not_of_this_process(folder: Path, tmp_path: Path) -> None:
    served = EmbeddingEndpoint()
    served.server.start()
    name, embedder = "served", ("--embedder-url", served.url)
    commands = [
        ["stats"],
        ["list", "--where", "uses>3"],
        ["export", str(tmp_path / "snapshot")],
        ["quarantine", "--where", "uses>8", "--yes"],
        ["release", "--where", "uses>8", "--yes"],
        ["delete", "--where", "uses>8", "--yes"],
        ["import", str(tmp_path / "snapshot")],
        ["verify"],
        ["reembed", "--embedder", name, *embedder],
        ["search", "open the door", *embedder],
    ]
    program = (
        "import json, sys; from verl_comprl.cli.main import main\n"
        "def loaded(): return [name for name in ('verl', 'torch', 'ray') if name in sys.modules]\n"
        "found = [(main(['bank', *command, '--path', sys.argv[1]]), loaded()) for command in json.loads(sys.argv[2])]\n"
        "print(json.dumps(found))"
    )
    command = [sys.executable, "-c", program, str(folder), json.dumps(commands)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        served.server.stop()
    found = json.loads(done.stdout.splitlines()[-1])
    by_action = {command[0]: result for command, result in zip(commands, found, strict=True)}
    assert by_action == {command[0]: [0, []] for command in commands}, done.stdout + done.stderr
