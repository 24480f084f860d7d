"""The benchmark of an update's memory, with a batch of a few rows."""

import sys

import pytest

from benchmarks import update_memory


@pytest.mark.run
@pytest.mark.long
def test_it_prints_both_kinds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(sys, "argv", ["update_memory", "--pairs", "2", "--rows", "8", "--tokens", "400"])
    update_memory.main()
    rows = [
        line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(("| glibc", "| kept"))
    ]
    faults = [float(row[-1].removesuffix(" |").replace(",", "")) for row in rows]
    assert len(rows) == 2 and faults[1] < 0.5 * faults[0]
