"""``comprl doctor`` run in process with some of its checks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from verl_comprl.cli.doctor import checks
from verl_comprl.cli.main import main

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run one check by name with these arguments, and return its finding."""
    all_checks = dict(checks.CHECKS)

    def run(name: str, *arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(checks, "CHECKS", {name: all_checks[name]})
        code = main(["doctor", "--json", *arguments])
        found = json.loads(capsys.readouterr().out)
        (finding,) = found["findings"]
        assert finding["check"] == name
        assert code == int(finding["status"] == "failed") and found["ok"] == (code == 0)
        assert bool(finding["remedy"]) == (finding["status"] in ("warning", "failed")), finding
        return finding

    return run
