"""The benchmark of recording runs to its end, without Ray."""

import sys

import pytest
import ray

from benchmarks import record


def test_all_costs_are_measured_without_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def start(*_: object, **__: object) -> None:
        started.append("ray")
        raise RuntimeError("the benchmark starts Ray")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(sys, "argv", ["record", "--episodes", "2", "--turns", "2", "--step-seconds", "0.001"])
    record.main()
    assert not started
    rows = {line[:40].strip(): line[40:].split() for line in capsys.readouterr().out.splitlines()}
    shares = {what: float(cells[2].rstrip("%")) for what, cells in rows.items() if cells[1] == "ms"}
    sizes = {what: float(cells[0]) for what, cells in rows.items() if cells[1] == "KiB"}
    assert list(shares) == [
        "in the step itself",
        "workers: decode and pack, all together",
        "trainer's thread: write episodes",
        "manager: note calls",
        "manager's thread: write calls",
        "together",
    ]
    assert list(sizes) == ["episodes", "calls"]
    assert min(shares.values()) > 0 and min(sizes.values()) > 0
    assert shares["together"] == max(shares.values())
