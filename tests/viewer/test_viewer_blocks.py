"""Blocks hold what was put into them, in parts that can be found by row."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from run_files import unpack

from verl_comprl.viewer.blocks import ROW_BYTES, RowBlocks, pack, table_blocks

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=8))
def test_rows_come_back_in_order_from_the_block_that_starts_says(rows: list[Any]) -> None:
    details = RowBlocks()
    for row in rows:
        details.add(row)
    index, *blocks = table_blocks("run0/entries", {"id": [*range(len(rows))]}, details)
    table = unpack(index)
    assert index.name == "run0/entries" and table["columns"]["id"] == [*range(len(rows))]
    found: list[Any] = []
    for number, (start, block) in enumerate(zip(table["starts"], blocks, strict=True)):
        assert start == len(found) and block.name == f"run0/entries/{number}"
        found += unpack(block)
    assert found == rows


def test_a_block_is_closed_when_it_is_large_enough() -> None:
    details = RowBlocks()
    for _ in range(5):
        details.add("x" * (ROW_BYTES // 2))
    assert details.close()[0] == [0, 2, 4]


def test_numbers_that_json_has_not_become_null() -> None:
    details = RowBlocks()
    details.add([float("nan"), float("inf"), 1.5])
    *_, block = table_blocks("x", {}, details)
    assert unpack(block) == [[None, None, 1.5]]


def test_equal_data_gives_equal_text() -> None:
    assert pack("a", b"[1]").text == pack("b", b"[1]").text
