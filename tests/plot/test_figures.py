"""The figures of runs: which are drawn, from which metrics, and that they are the same every time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import append, halves, write_run

from verl_comprl.curves.groups import Group, group_runs
from verl_comprl.curves.run import open_run
from verl_comprl.plot.figures import FIGURES, GUIDED_FREE, Drawing
from verl_comprl.plot.style import COLOURS, colours


def evaluation(with_: float, without: float) -> dict[str, float]:
    return {
        f"comprl/eval/success_{mode}{bound}": value + shift
        for mode, value in (("with", with_), ("without", without))
        for bound, shift in (("", 0.0), ("_low", -0.05), ("_high", 0.05))
    }


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    folders = []
    for seed in (1, 2, 3):
        steps = {step: halves(0.2 * seed, 0.1, bank__size=9.0, extractor__reward=-0.5) for step in range(1, 11)}
        steps[10] |= evaluation(0.2 * seed, 0.1)
        folders.append(write_run(tmp_path / f"c{seed}", steps, seed=seed))
    free = {"comprl/free/rollouts": 8.0, "comprl/free/success": 0.3, "comprl/free/actions": 5.0, "timing_s/gen": 2.0}
    steps = {step: free for step in range(1, 8)} | {0: {"comprl/eval/success_without": 0.25}}
    folders.append(write_run(tmp_path / "b", steps, arm="baseline"))
    return group_runs([open_run(folder) for folder in folders])


def test_every_figure_with_data_is_drawn_as_png_and_svg(groups: list[Group], tmp_path: Path) -> None:
    drawn = dict(Drawing(groups).save(tmp_path / "new" / "figures"))
    assert set(drawn) == {*FIGURES, GUIDED_FREE}
    for name, files in drawn.items():
        assert [file.name for file in files] == [f"{name}.png", f"{name}.svg"]
        assert files[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in files[1].read_bytes()


def texts(drawing: Drawing, name: str) -> list[list[str]]:
    figure = drawing._compare(FIGURES[name])
    assert figure is not None
    return [[text.get_text() for text in panel.texts] for panel in figure.axes]


def test_arms_are_compared_and_the_baseline_is_in_both_halves(groups: list[Group]) -> None:
    drawing = Drawing(groups, window=1)
    assert texts(drawing, "success") == [
        ["complementary: 40 %", "baseline: 30 % (step 7)"],
        ["complementary: 10 %", "baseline: 30 % (step 7)"],
    ]
    assert texts(drawing, "evaluation")[0] == ["complementary: 40 %", "baseline: 25 % (step 0)"]
    assert texts(drawing, "bank") == [["complementary: 9.00"]]  # the other panel has no metric
    assert texts(drawing, "extractor_reward") == [["complementary: -0.50"]]


def test_captions_say_how_many_runs_a_group_has(groups: list[Group]) -> None:
    figure = Drawing(groups, window=1)._compare(FIGURES["success"])
    assert figure is not None
    assert figure.get_supxlabel().replace("\n", " ") == (
        "complementary (3 runs); baseline (1 run). Dashed: without experience, all episodes free. "
        "Shaded: 95 % t-interval of the mean over runs."
    )


def caption(folder: Path, counts: Mapping[str, int], window: int, name: str = "success") -> str:
    """Of a figure of so many runs of each arm."""
    steps = {step: halves(0.5, 0.25) | evaluation(0.5, 0.25) for step in range(1, 9)}
    folders = [
        write_run(folder / f"{arm}{seed}", steps, arm=arm, seed=seed)
        for arm, count in counts.items()
        for seed in range(count)
    ]
    drawing = Drawing(group_runs([open_run(folder) for folder in folders]), window)
    figure = drawing._halves() if name == GUIDED_FREE else drawing._compare(FIGURES[name])
    assert figure is not None
    return figure.get_supxlabel().replace("\n", " ").partition(". ")[2]


@pytest.mark.parametrize("name", ["success", GUIDED_FREE])
def test_captions_explain_what_is_faint(name: str, tmp_path: Path) -> None:
    cases = {
        "one": ({"complementary": 1}, 4, "Faint: single steps of one run. Moving mean over 4 steps."),
        "two": ({"complementary": 2}, 4, "Faint: each run. Moving mean over 4 steps."),
        "mixed": (
            {"complementary": 2, "offline": 1},
            4,
            "Faint: each run, single steps of one run. Moving mean over 4 steps.",
        ),
        "not smoothed": ({"complementary": 2, "offline": 1}, 1, "Faint: each run."),
    }
    for folder, (counts, window, expected) in cases.items():
        assert caption(tmp_path / folder, counts, window, name) == expected


def test_captions_of_evaluations_name_their_intervals_and_the_dashed_lines(tmp_path: Path) -> None:
    assert caption(tmp_path, {"complementary": 1, "baseline": 2}, 4, "evaluation") == (
        "Dashed: without experience, all episodes free. "
        "Shaded, of a single run: 95 % Wilson interval; episodes of one task that end alike are one. Faint: each run."
    )


def test_captions_leave_out_intervals_that_are_not_drawn(tmp_path: Path) -> None:
    """Of three runs two have been evaluated, and the evaluation of a single one has no bounds."""
    steps = {step: halves(0.5, 0.25) for step in (1, 2)}
    folders = [write_run(tmp_path / str(seed), steps, seed=seed) for seed in range(3)]
    append(folders[0], {2: {"comprl/eval/success_with": 0.5}})
    append(folders[1], {2: {"comprl/eval/success_with": 0.75}})
    alone = write_run(tmp_path / "alone", {1: {"comprl/eval/success_with": 0.5}}, arm="offline")
    drawing = Drawing(group_runs([open_run(folder) for folder in [*folders, alone]]), 1)
    figure = drawing._compare(FIGURES["evaluation"])
    assert figure is not None
    assert figure.get_supxlabel().replace("\n", " ") == "complementary (3 runs); offline (1 run). Faint: each run."


def test_the_reward_has_bounds(tmp_path: Path) -> None:
    folders = [
        write_run(
            tmp_path / str(seed), {step: halves(0.5, 0.25, extractor__reward=reward) for step in (1, 2)}, seed=seed
        )
        for seed, reward in enumerate((1.0, 1.0, 0.5))
    ]
    figure = Drawing(group_runs([open_run(folder) for folder in folders]), 1)._compare(FIGURES["extractor_reward"])
    assert figure is not None
    (band,) = figure.axes[0].collections
    assert max(y for _, y in np.asarray(band.get_paths()[0].vertices)) == 1.0


def test_long_titles_of_panels_do_not_meet(groups: list[Group]) -> None:
    settings = ", ".join(f"setting {number}" for number in range(12))
    drawing = Drawing([replace(groups[0], name=settings), replace(groups[0], name=f"{settings}, another")])
    figure = drawing._halves()
    assert figure is not None
    figure.draw_without_rendering()
    first, second = (panel.title.get_window_extent() for panel in figure.axes)
    assert first.x1 < second.x0


def test_a_baseline_alone_has_no_guided_half(groups: list[Group], tmp_path: Path) -> None:
    drawing = Drawing(groups[1:])
    assert texts(drawing, "success") == [["baseline: 30 %"]]
    drawn = dict(drawing.save(tmp_path))
    assert not drawn[GUIDED_FREE] and not drawn["bank"] and drawn["actions"]


def test_the_same_runs_give_the_same_bytes(groups: list[Group], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        list(Drawing(groups).save(tmp_path / folder))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_colours_are_those_of_the_arms_unless_arms_repeat() -> None:
    assert colours(["baseline", "complementary"]) == [COLOURS["baseline"], COLOURS["complementary"]]
    assert len(set(colours(["complementary", "complementary", "my_arm"]))) == 3
    assert len(colours(["x"] * 20)) == 20


def test_dollars_in_a_name_are_no_formula(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {step: halves(0.5, 0.25) for step in (1, 2)}, arm="cost$^{5$")
    drawn = dict(Drawing(group_runs([open_run(run)])).save(tmp_path / "figures"))
    assert len(drawn["success"]) == 2
