"""Curves in a line of text."""

import io
import math

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from verl_comprl.watch.sparkline import Sparkline


def test_characters_are_the_shares_of_the_height() -> None:
    assert Sparkline([0.0, 0.5, 1.0], 0, 1).text(9) == "▁▅█"
    assert Sparkline([2.0, 4.0]).text(9) == "▁█"
    assert Sparkline([0.0, math.nan, 5.0], 0, 1).text(9) == "▁ █"
    assert Sparkline([0.0, 0.0], 0).text(9) == "▁▁" and Sparkline([]).text(9) == ""


def test_several_values_share_a_character() -> None:
    assert Sparkline([0, 0, 0, 0, 1, 1, 0, 1], 0, 1).text(4) == "▁▁█▅"


@given(st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=50), st.integers(0, 60))
def test_a_line_fills_the_width_and_no_more(values: list[float], width: int) -> None:
    assert len(Sparkline(values, 0, 1).text(width)) == min(width, len(values))


def test_a_terminal_without_blocks_gets_ascii() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=output, width=20).print(Sparkline([0.0, 1.0], 0, 1))
    output.flush()
    assert output.buffer.getvalue().decode("ascii").strip() == "_#"  # type: ignore[attr-defined]
