"""The benchmark of query embeddings, with the built-in model: which texts are embedded, and the table."""

import pytest

from benchmarks import embedding


@pytest.mark.slow
def test_a_text_is_embedded_once_whoever_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["embedding", "--rounds", "2"])
    embedding.main()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("  ")[-1].strip() == "ratio"
    rows = {line[:32].strip(): [float(cell) for cell in line[32:].split()] for line in lines}
    queries_and_embedded = {name: tuple(cells[:2]) for name, cells in rows.items()}
    assert queries_and_embedded == {
        "one query": (1, 1),
        "8 distinct, one call each": (8, 8),
        "8 distinct, one call": (8, 8),
        "8 identical, at the same time": (8, 1),
        "a known query": (1, 0),
    }
    assert rows["one query"][-1] == 1 > rows["a known query"][-1]
