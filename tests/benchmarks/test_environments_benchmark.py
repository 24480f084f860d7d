"""The benchmark of environments with one that starts quickly, and that it can play all of them."""

import importlib
import re

import pytest

import env_adapters
from benchmarks import environments


@pytest.mark.slow
def test_a_row_says_whether_the_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["environments", "sokoban", "--seconds", "0.5", "--parallel", "2"])
    environments.main()
    header, _, row = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    assert len(row) == len(header) and row[0] == "sokoban" and header[4] == "steps/s of 2"
    alone = re.fullmatch(r"([\d,]+) \(target 50,000(, MISSED)?\)", row[1])
    assert alone
    speed = int(alone[1].replace(",", ""))
    assert speed > 0 and bool(alone[2]) == (speed < 50_000)
    median, longest = map(float, row[2].split(" / "))
    assert 0 < median <= longest
    memory, together, stall, memory_together = (float(cell.replace(",", "")) for cell in row[3:])
    assert together > 0 and min(memory, stall, memory_together) >= 0


def test_options_are_known_for_every_environment_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(environments.PLAYER))
    families = importlib.import_module("families").FAMILIES
    assert families.keys() >= set(env_adapters.list_environments()) >= environments.TARGETS.keys()
