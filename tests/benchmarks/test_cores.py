"""Work beside a process at idle priority on the other core."""

import os
import sys

import pytest

from benchmarks import cores
from benchmarks.cores import WORK, measure, neighbour, table


def test_the_table_has_the_middle_half_of_the_rounds() -> None:
    ratios = {(own, other): [1.0, 1.1, 1.2, 1.3, 9.0] for own in WORK for other in WORK}
    ratios["in memory", "in registers"] = [1.0, 1.0]
    head, rule, *lines = table(ratios).splitlines()
    assert head.count("|") == rule.count("|") == len(WORK) + 2
    assert [line.count("1.20 (1.10 to 1.30)") for line in lines] == [4, 4, 4, 3]
    assert lines[3].startswith("| in memory (sums of vectors of 128 MiB) | 1.00 (1.00 to 1.00) |")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a second core")
def test_work_is_done_on_both_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "WORK", kinds := ("in registers", "in memory"))
    before = os.sched_getaffinity(0)
    try:
        ratios = measure(2, 0.01, sorted(before)[:2])
    finally:
        os.sched_setaffinity(0, before)
    assert set(ratios) == {(own, other) for own in kinds for other in kinds}
    assert all(len(found) == 2 and min(found) > 0 for found in ratios.values())


@pytest.mark.parametrize("kind", WORK)
def test_every_kind_of_work_can_be_done(kind: str) -> None:
    assert cores.rate(cores.work(kind), 0.01) > 0


def test_a_neighbour_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.sys, "executable", "false")
    with pytest.raises(RuntimeError, match="has ended"), neighbour("in memory", 0):
        raise AssertionError("it has begun")


def test_one_round_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["cores", "--rounds", "1"])
    with pytest.raises(SystemExit):
        cores.main()
    assert "one ratio shows no spread" in capsys.readouterr().err
