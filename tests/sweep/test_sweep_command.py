"""The command line of a sweep: exit codes and messages."""

from pathlib import Path
from typing import Any

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep import __main__ as command
from verl_comprl.sweep.runs import Run


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["finished"], 0),
        (["finished", "failed", "finished"], 1),
        (["failed", "interrupted"], 130),
    ],
)
def test_exit_codes(statuses: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def run(runs: list[Run], **options: Any) -> list[dict[str, str]]:
        given.update(options, names=[run.name for run in runs])
        return [{"status": status} for status in statuses]

    monkeypatch.setattr(command, "run", run)
    assert command.main(["--config-name", "recipe", "arm=baseline,complementary"]) == code
    assert given["config_name"] == "recipe" and given["names"] == ["arm=baseline", "arm=complementary"]


def test_mistakes_are_printed_one_per_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise ConfigError("run a: one\nrun b: two")

    monkeypatch.setattr(command, "run", run)
    assert command.main([]) == 2
    assert capsys.readouterr().out == "error: run a: one\nerror: run b: two\n"


@pytest.mark.parametrize(
    ("runs", "overrides", "message"),
    [
        (None, ["arm=baseline,"], "error: arm=baseline, cannot be read; allowed: key=value"),
        ("- {name: a, overrides: arm=baseline}", [], "runs.yaml: run a: overrides must be a list of key=value"),
        ("- {name: [", [], "runs.yaml cannot be read: while parsing"),
        (
            "- {name: a, overrides: [arm=baseline]}",
            ["arm=complementary"],
            "error: run a: arm is given for this run and",
        ),
        ("", [], "runs.yaml must be a list of runs"),
    ],
)
def test_wrong_input_is_an_error_and_no_traceback(
    runs: str | None, overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.yaml"
    if runs is not None:
        file.write_text(runs)
    assert command.main([*(["--runs", str(file)] if runs is not None else []), *overrides]) == 2
    output = capsys.readouterr().out
    assert output.startswith("error: ") and message in output


def test_a_file_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--runs", "missing.yaml"]) == 2
    assert capsys.readouterr().out.startswith("error: missing.yaml cannot be read: ")
