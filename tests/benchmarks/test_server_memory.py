"""The benchmark of a server's memory: a short measurement, and the table of made ones."""

import sys

import pytest

from benchmarks import server_memory


@pytest.mark.run
@pytest.mark.long
@pytest.mark.timeout(600)
def test_fewer_kept_products_take_less_memory() -> None:
    """If it fails, oneDNN or vLLM keeps something else, and the variable may not be needed any more."""
    usual, ours = (server_memory.measure(capacity, 250) for capacity in server_memory.KINDS.values())
    assert ours[1] - ours[0] < 0.7 * (usual[1] - usual[0])


def test_the_table_compares_both_kinds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = {"1024": [1000.0, 2000.0, 10.0, 4.0], "128": [1000.0, 1100.0, 5.0, 8.0]}
    monkeypatch.setattr(server_memory, "measure", lambda capacity, lengths: made[capacity])
    monkeypatch.setattr(sys, "argv", ["server_memory", "--pairs", "2"])
    server_memory.main()
    out = capsys.readouterr().out
    assert "| 1,024 (oneDNN's default) | 1,000 | 2,000 | 10.0 | 4.0 |" in out
    assert "| 128 (a run's) | 1,000 | 1,100 | 5.0 | 8.0 |" in out
    assert "seconds, relative: 0.500" in out and "again, relative: 2.000" in out
