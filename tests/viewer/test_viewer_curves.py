"""Curves, against numbers worked out from the metrics."""

from typing import Any

import pytest

from verl_comprl.algorithm.interval import effective_count, wilson_interval
from verl_comprl.viewer.curves import POINTS, curves, in_order


def series(found: list[dict[str, Any]], title: str) -> dict[str, dict[str, Any]]:
    (curve,) = (curve for curve in found if curve["title"] == title)
    return {item["label"]: item for item in curve["series"]}


def line(step: int, **data: float) -> dict[str, Any]:
    return {"step": step, "data": {f"comprl/{name.replace('__', '/')}": value for name, value in data.items()}}


def test_steps_are_pooled_by_their_rollouts() -> None:
    count = 2 * POINTS
    steps = [line(step, free__success=step % 2, free__rollouts=3 if step % 2 else 1) for step in range(1, count + 1)]
    free = series(curves(steps, []), "Success in training")["without"]
    assert [*free["x"]] == [*range(2, count + 1, 2)] and {*free["y"]} == {0.75}
    assert (free["low"][0], free["high"][0]) == pytest.approx(wilson_interval(3, 4))


def test_an_interval_of_training_knows_which_rollouts_are_of_one_prompt() -> None:
    rollouts = {1: [("a", True)] * 3 + [("a", False), *[("b", False)] * 4], 2: [("c", True)] * 8}
    steps = [line(step, free__success=rate, free__rollouts=8) for step, rate in ((1, 0.375), (2, 1))]
    found = curves(steps, [], {(step, "free"): outcomes for step, outcomes in rollouts.items()})
    free = series(found, "Success in training")["without"]
    count = effective_count(rollouts[1])
    assert count < 8 and (free["low"][0], free["high"][0]) == pytest.approx(wilson_interval(0.375 * count, count))
    assert (free["low"][1], free["high"][1]) == pytest.approx(wilson_interval(1, 1))
    assert found[0]["note"] == "each step, 95 % intervals"


def test_pooled_steps_are_of_different_prompts_and_a_line_without_rollouts_is_none_of_them() -> None:
    """Such as that of an evaluation with which a continued run begins."""
    count = 3 * POINTS - 1
    steps = [line(step, guided__success=step % 2, guided__rollouts=2) for step in range(1, count + 1)]
    trained = {(step, "guided"): 2 * [(f"prompt {step}", step % 2 == 1)] for step in range(1, count + 1)}
    guided = series(curves([*steps, line(count, bank__size=1)], [], trained), "Success in training")["with experience"]
    assert (guided["low"][0], guided["high"][0]) == pytest.approx(wilson_interval(1, 2))
    assert (guided["low"][-1], guided["high"][-1]) == pytest.approx(wilson_interval(2, 3)) and guided["x"][-1] == count


def test_evaluations_alone_do_not_pool_steps() -> None:
    steps = [line(step, free__success=1, free__rollouts=8) for step in range(1, POINTS + 1)]
    curve = curves([*steps, line(POINTS, eval__success_without=0.5)], [])[0]
    assert curve["pooled"] == 1 and len(curve["series"][0]["x"]) == POINTS


def test_what_intervals_cannot_know_is_said() -> None:
    steps = [line(step, free__success=0.5, free__rollouts=2) for step in (1, 2)]
    outcomes = [("a", True), ("a", False)]
    notes = [curves(steps, [], trained)[0]["note"] for trained in (
        {(1, "free"): outcomes, (2, "free"): outcomes}, {(1, "free"): outcomes, (2, "free"): outcomes[:1]}, {}
    )]  # fmt: skip
    assert notes == [
        "each step, 95 % intervals",
        "each step, 95 % intervals, of rollouts where episodes are not on record",
        "each step, 95 % intervals of rollouts, since episodes are not on record",
    ]
    missing = series(curves(steps, [], {(2, "free"): outcomes[:1]}), "Success in training")["without"]
    assert (missing["low"][1], missing["high"][1]) == pytest.approx(wilson_interval(1, 2))


def test_of_pooled_steps_the_first_may_be_fewer() -> None:
    steps = [line(step, free__success=1, free__rollouts=8) for step in range(POINTS + 2)]
    free = series(curves(steps, []), "Success in training")["without"]
    assert (free["x"][0], free["x"][-1]) == (1, POINTS + 1)
    odd = series(curves(steps[:-1], []), "Success in training")["without"]
    assert (odd["x"][:2], odd["x"][-1]) == ((0, 2), POINTS) and odd["low"][0] < odd["low"][1] == odd["low"][-1]


def test_a_part_that_is_not_used_has_no_curve() -> None:
    found = curves([line(step, bank__size=step, bank__quarantined=0, guided__tool_calls=0) for step in (1, 2)], [])
    assert [curve["title"] for curve in found] == ["Bank"] and [*series(found, "Bank")] == ["entries"]


def test_a_half_without_rollouts_has_no_points() -> None:
    steps = [line(1, free__success=0.5, free__rollouts=4, guided__rollouts=0)]
    assert [*series(curves(steps, []), "Success in training")] == ["without"]


def test_evaluations_keep_their_intervals_and_their_tasks() -> None:
    values = {"success_with": 0.5, "success_with_low": 0.4, "success_with_high": 0.6, "success_without": 0.25}
    evaluation = {"step": 7} | {
        f"comprl/eval/{task}{name}": value for task in ("", "a/", "b/c/") for name, value in values.items()
    }
    found = curves([], [evaluation])
    assert [curve["title"] for curve in found] == ["Success in evaluations", "a", "b/c"]
    (point,) = zip(*(series(found, "b/c")["with experience"][key] for key in ("x", "y", "low", "high")), strict=True)
    assert point == (7, 0.5, 0.4, 0.6)
    assert series(found, "a")["without"]["low"] == (None,)


def test_a_single_task_has_no_curve_next_to_that_of_all() -> None:
    line = {"step": 1, "comprl/eval/success_without": 0.5, "comprl/eval/a/success_without": 0.5}
    assert [curve["title"] for curve in curves([], [line])] == ["Success in evaluations"]


def test_of_two_evaluations_of_a_step_the_first_counts() -> None:
    evaluations = [
        {"step": step, "comprl/eval/success_without": rate} for step, rate in ((4, 0.5), (4, 0.9), (8, 0.75))
    ]
    without = series(curves([], evaluations), "Success in evaluations")["without"]
    assert [*zip(without["x"], without["y"], strict=True)] == [(4, 0.5), (8, 0.75)]


def test_evaluations_are_found_in_the_metrics_of_a_run_without_their_file() -> None:
    found = curves([line(0, eval__success_without=0.1), line(1, bank__size=5)], [])
    assert [*series(found, "Success in evaluations")["without"]["x"]] == [0]
    assert [*series(found, "Bank")["entries"]["y"]] == [5]


def test_a_run_without_metrics_has_no_curves() -> None:
    assert curves([], []) == []


def test_titles_stand_in_the_order_of_a_run_that_has_all_curves() -> None:
    found = in_order({"maze", "Time of a step", "Bank", "Success in training", "alfworld", "Success in evaluations"})
    assert found == ["Success in training", "Success in evaluations", "Bank", "Time of a step", "alfworld", "maze"]
