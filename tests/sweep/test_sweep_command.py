"""The command line of a sweep: exit codes and messages."""

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
