"""Names at the ends of lines do not overlap and stay in place."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from verl_comprl.curves.bands import Band
from verl_comprl.plot.panel import Line, draw_lines, spread


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.12))
def test_names_are_apart_in_order_and_inside(places: list[float], gap: float) -> None:
    found = spread(places, gap)
    order = sorted(range(len(places)), key=lambda index: (places[index], -index))
    assert all(found[b] - found[a] >= gap - 1e-9 for a, b in pairwise(order))
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in found)


def test_names_with_room_stay_where_they_are() -> None:
    assert spread([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.6, 0.4])
    assert spread([1.0, 1.0], 0.2) == pytest.approx([1.0, 0.8])


def line(name: str, steps: list[int], means: list[float]) -> Line:
    nan = [float("nan")] * len(means)
    return Line(name, "#000000", Band(steps, means, nan, nan))


def test_a_name_says_the_last_value_and_where_a_line_ends_early() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [line("a", [0, 9], [0.1, 0.876]), line("b", [0, 4], [0.1, 0.5]), line("c", [], [])], share=True)
    assert [text.get_text() for text in panel.texts] == ["a: 88 %", "b: 50 % (step 4)"]
    panel = Figure().subplots()
    draw_lines(panel, [line("bank", [1], [288.0])])
    assert [text.get_text() for text in panel.texts] == ["bank: 288"] and panel.get_ylim()[0] == 0


def test_a_long_name_leaves_the_axes_their_width() -> None:
    names = ["complementary, capacity 576", "no search and ask", "path " + 12 * "/folder"]
    figure = Figure(figsize=(4.3, 3), layout="constrained")
    panel = figure.subplots()
    draw_lines(panel, [line(name, [0, 9], [0.1, 0.5]) for name in names[:2]] + [line(names[2], [0, 4], [0.1, 0.5])])
    labels = [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in panel.texts]
    assert labels[:2] == ["complementary,\ncapacity 576: 0.50", "no search and ask: 0.50"]
    assert labels[2].replace("\n", "").endswith("folder: 0.50 (step 4)")
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in panel.texts]  # without the arrows
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes)), "labels overlap"
    assert panel.get_window_extent().width > figure.bbox.width * 0.4


def test_no_stroke_continues_a_line_that_ends_early() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [line("long", [0, 40], [0.1, 0.9]), line("short", [0, 20], [0.1, 0.5])], share=True)
    names = [text for text in panel.texts if isinstance(text, Annotation)]
    strokes = {name.get_text().partition(":")[0]: name.arrow_patch for name in names}
    assert strokes["long"] is not None and strokes["short"] is None


def test_the_step_of_a_line_that_ends_early_is_not_broken() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [line("a", [0, 180], [0.1, 0.5]), line("complementary", [0, 40], [0.1, 0.94])], share=True)
    label = panel.texts[1].get_text()
    assert label == "complementary: 94\N{NO-BREAK SPACE}%\n(step\N{NO-BREAK SPACE}40)"


def test_bands_stay_within_what_is_possible_and_markers_are_whole() -> None:
    wide = Band([0, 9], [0.9, 1.0], [-0.1, 0.5], [1.4, 1.5])
    for bounds, expected in (((0.0, math.inf), (0.0, 1.5)), ((-1.0, 1.0), (-0.1, 1.0)), (None, (0.0, 1.0))):
        panel = Figure().subplots()
        line = Line("a", "#000000", wide, markers=True)
        draw_lines(panel, [line], share=True) if bounds is None else draw_lines(panel, [line], bounds=bounds)
        heights = np.asarray(panel.collections[0].get_paths()[0].vertices)[:, 1]
        assert (min(heights), max(heights)) == pytest.approx(expected)
        assert not panel.lines[0].get_clip_on()


def test_axis_and_names_write_percent_alike() -> None:
    figure = Figure()
    panel = figure.subplots()
    draw_lines(panel, [line("a", [0, 9], [0.1, 1.0])], share=True)
    figure.draw_without_rendering()
    ticks = [label.get_text().replace("\N{NO-BREAK SPACE}", " ") for label in panel.get_yticklabels()]
    assert "100 %" in ticks and panel.texts[0].get_text() == "a: 100 %"


def test_a_share_and_its_unit_stay_together() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [line("total training steps 30", [0, 9], [0.1, 0.5])], share=True)
    (label,) = panel.texts
    assert label.get_text() == "total training steps 30:\n50\N{NO-BREAK SPACE}%"


def test_a_panel_with_a_given_end_says_where_its_lines_end() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [line("guided", [1, 6], [0.1, 0.5])], share=True, last=12)
    assert [text.get_text() for text in panel.texts] == ["guided: 50 % (step 6)"] and panel.get_xlim()[1] >= 12


def test_the_interval_of_a_single_evaluation_is_a_stroke() -> None:
    panel = Figure().subplots()
    draw_lines(panel, [Line("a", "#000000", Band([0], [0.16], [0.12], [0.22]))], share=True)
    (strokes,) = panel.collections
    assert [np.asarray(path.vertices).tolist() for path in strokes.get_paths()] == [[[0, 0.12], [0, 0.22]]]
