"""The benchmark of retrievals on small banks: its rows, and its tables."""

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import retrieval


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Calls the benchmark, and returns what it prints."""

    def run(*options: str) -> str:
        monkeypatch.setattr("sys.argv", ["retrieval", *options])
        retrieval.main()
        return capsys.readouterr().out

    yield run
    gc.unfreeze()


@pytest.mark.slow
def test_every_size_and_workload_is_measured(measured: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "ADDITIONS", 4)
    monkeypatch.setattr(retrieval, "EMBEDDED_ENTRIES", 24)
    rows = json.loads(measured("--sizes", "16", "--askers", "1", "16", "--seconds", "0.05", "--json"))

    def kinds(part: str) -> list[tuple[int, int, str]]:
        return [(row["entries"], row["askers"], row["workload"]) for row in rows[part]]

    assert kinds("retrievals") == [(16, 1, "distinct"), (16, 16, "groups"), (16, 16, "distinct")]
    assert kinds("with_embedding") == [(24, 1, "distinct"), (24, 16, "groups")]
    for row in [*rows["retrievals"], *rows["with_embedding"]]:
        assert 0 < row["p50_ms"] <= row["p99_ms"] and row["per_second"] > 0
        # No more queries than askers are under way, and half of them take the median or longer.
        assert row["per_second"] * row["p50_ms"] / 2000 <= row["askers"]
    (addition,) = rows["additions"]
    assert addition["entries"] == 16 and addition["median_ms"] > 0


def test_the_tables_hold_the_rows_and_the_ratio_of_additions_to_the_smallest_bank(
    measured: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"entries": 1000, "askers": 8, "workload": "groups", "p50_ms": 1.0, "p99_ms": 2.0, "per_second": 500.0}
    additions = [{"entries": size, "median_ms": time, "iqr_ms": 0.25} for size, time in ((1000, 2.0), (20_000, 2.5))]

    async def measure(_: Any) -> dict[str, Any]:
        return {"retrievals": [row], "with_embedding": [], "additions": additions}

    monkeypatch.setattr(retrieval, "measure", measure)
    cells = [line.split() for line in measured().splitlines()]
    assert ["1000", "8", "groups", "1.0", "2.0", "500"] in cells
    assert ["1000", "2.00", "0.25", "1.00"] in cells and ["20000", "2.50", "0.25", "1.25"] in cells
    assert not any("built-in" in line for line in cells)
