"""Table and verdict of measured steps: comparison with the baseline, counts, and reasons to say nothing."""

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.overhead_table import (
    ARMS,
    DISTILLED,
    GENERATED,
    SERVERS,
    UPDATES,
    WITHOUT,
    Measured,
    equal_speed,
    processes,
    quiet,
    report,
    server_seconds,
    starts,
    verdict,
)
from benchmarks.paired import show


def row(arm: str, number: int, step: int, gen: float, updates: float = 0.0) -> dict[str, Any]:
    metrics = {"timing_s/gen": gen, "timing_s/step": 2 * gen, GENERATED.format("free"): 64.0}
    if arm not in WITHOUT:
        metrics |= {GENERATED.format("guided"): 64.0, "comprl/rollout/guided/seconds_guide": 0.002}
        written, returned, unreadable = DISTILLED
        metrics |= {UPDATES: updates, written: 6.0 * step, returned: 3.0 * step, unreadable: 1.0 * step}
    cores = {"x 1": 0.25, f"{SERVERS} 7": 0.2, f"{SERVERS} 8": 0.05}
    return {"arm": arm, "round": number, "step": step, "metrics": metrics, "others": 0.05, "cores": cores}


def test_only_steps_that_all_arms_have_are_compared() -> None:
    rows = [row(arm, 0, step, 1.0 + 0.1 * (arm == "idle"), 3.0 * step) for arm in ARMS for step in (0, 1)]
    rows.append(row("baseline", 1, 0, 100.0))
    lines = report(Measured(rows)).splitlines()
    assert lines[0] == "2 steps of each arm, in 1 rounds, starts of the engines: 1"
    cells = {line.strip("| ").split(" | ")[0]: line.strip("| ").split(" | ") for line in lines[3:]}
    assert cells["idle"][1:8] == ["1.100", "-", "2.200", "-", "64.0", "64.0", "-"]
    assert cells["idle"][8] == "2.0" and len(cells["idle"]) == len(lines[1].strip("| ").split(" | "))
    # Nine of ten answers, and 3 updates, between the first and the last step of the turn.
    assert cells["idle"][-4:] == ["90%", "3.00", "0.0", "0.05"]
    assert cells["baseline"][-4] == "-"
    assert cells["baseline"][5:7] == ["64.0", "-"]
    assert verdict(Measured(rows)).splitlines()[0] == "recorded: no verdict, since one round has no interval"


def test_what_was_made_is_counted_over_turns_of_one_step_and_over_a_continued_run() -> None:
    """Nine updates in the three turns before the run was continued, each with a step that is not measured; then one."""
    totals = [2.0, 8.0, 11.0, 0.0, 1.0]
    measured = Measured([row(arm, number, 0, 1.0, total) for number, total in enumerate(totals) for arm in ARMS])
    assert measured.made("idle", UPDATES) == 9 + 0 + 1
    assert measured.updates_per_step("idle") == pytest.approx(10 / 8)


def rounds(loads: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return rounds of four steps; the load of its turn for the baseline and for the arm ``idle``."""
    turns = [
        (arm, number, idle if arm == "idle" else base) for number, (base, idle) in enumerate(loads) for arm in ARMS
    ]
    return [row(arm, number, step, load + 0.001 * step, step) for arm, number, load in turns for step in range(4)]


def test_the_interval_is_over_rounds_whose_steps_share_their_load() -> None:
    """Two rounds in which the load of the machine has changed between the turns, each once in each direction."""
    measured = Measured(rounds([(1.0, 1.2), (1.2, 1.0)]))
    ratio = measured.ratio("idle", "timing_s/gen")
    assert ratio is not None and ratio[0] == pytest.approx(1.0)
    # Two rounds can be drawn as one of them twice. From eight pairs of steps such a draw is one in 128.
    assert ratio[1:] == pytest.approx((1.0015 / 1.2015, 1.2015 / 1.0015))


def test_from_three_starts_on_the_interval_is_over_starts() -> None:
    """Rounds of one start are alike, and there may be any number of them."""
    loads = ((1.0, 1.1), (1.0, 0.9), (1.0, 1.0), (2.0, 2.0))
    found = [
        row(arm, 3 * start + number, 0, load, float(number)) | {"start": start}
        for start, (base, ours) in enumerate(loads)
        for number in range(3)
        for arm, load in (("baseline", base), ("idle", ours))
    ]
    over = {2: "1.000 (0.933 to 1.067)", 3: "0.997 (0.777 to 1.279)", 4: "0.997 (0.876 to 1.136)"}
    for count, expected in over.items():
        measured = Measured([each for each in found if each["start"] < count])
        ratio = measured.ratio("idle", "timing_s/gen")
        assert ratio is not None and show(ratio) == expected
        lines = starts(measured).split("\n")
        assert lines[2] == "| 1 | 3 | 1.100 (1.100 to 1.100) |" and len(lines) == 3 + count
        assert lines[-1].startswith(f"| all | {3 * count} | ")
        assert (expected in lines[-1]) == (count == 2), "over rounds, whatever the number of starts"
    assert starts(Measured(found[:6])) == ""


def test_the_verdict_is_that_of_the_upper_bound() -> None:
    within, above = [(1.0, 1.02), (2.0, 2.04)], [(1.0, 1.02), (2.0, 2.1)]
    assert verdict(Measured(rounds(within))).splitlines() == [
        "recorded: 1.000 (1.000 to 1.000), target met (at most 1.03)",
        "idle: 1.020 (1.020 to 1.020), target met (at most 1.03)",
    ]
    assert verdict(Measured(rounds(above))).endswith("idle: 1.040 (1.020 to 1.050), target NOT MET (at most 1.03)")


def test_slower_cores_take_more_processor_time_for_the_same_and_make_no_difference_then() -> None:
    """Half as fast in the second round of one arm, which costs one percent in any; the other extractor has a server."""
    rows = rounds([(1.0, 1.0)] * 3)
    for changed in rows:
        if changed["arm"] == "recorded":
            slower = 2.0 if changed["round"] == 1 else 1.0
            for key in ("timing_s/gen", "timing_s/step"):
                changed["metrics"][key] *= slower
            changed["metrics"]["timing_s/gen"] *= 1.01
        elif changed["arm"] == "idle":
            changed["cores"][f"{SERVERS} 8"] = 0.15
    measured = Measured(rows)
    assert measured.per_server_second("recorded") == pytest.approx((1.01,) * 3)
    assert server_seconds(measured.turns["recorded"][1]) == pytest.approx(0.2 * 2 * 2.003)
    raw = measured.ratio("recorded", "timing_s/gen")
    assert raw is not None and raw[0] == pytest.approx(1.01 * 4 / 3, abs=1e-3) and raw[2] > 1.6
    said = {line.partition(",")[0]: line.rpartition(": ")[2] for line in equal_speed(measured).splitlines()}
    same = "1.000 (1.000 to 1.000)"
    assert said == dict.fromkeys(ARMS[1:], same) | {"recorded": "1.010 (1.010 to 1.010)"}
    assert equal_speed(Measured(rows[:20])) == ""


@pytest.mark.parametrize(
    ("half", "tokens", "said"), [("free", 63.5, "63.7500"), ("guided", 64.1, "64.0500"), ("guided", None, "no")]
)
def test_there_is_no_verdict_where_the_arms_have_not_generated_equally_many_tokens(
    half: str, tokens: float | None, said: str
) -> None:
    rows = rounds([(1.0, 1.0), (1.0, 1.0)])
    for changed in rows:
        if changed["arm"] == "idle" and (tokens is None or changed["round"] == 1):
            changed["metrics"].pop(GENERATED.format(half))
            changed["metrics"] |= {} if tokens is None else {GENERATED.format(half): tokens}
    text = verdict(Measured(rows))
    assert text.startswith("NO VERDICT")
    assert text.endswith(f": idle, {half}: episodes of {said} tokens instead of 64.0000")


@pytest.mark.parametrize(
    ("totals", "said"),
    [
        ({DISTILLED[2]: 20.0}, "recorded: 31% of the answers can be read"),
        (dict.fromkeys(DISTILLED, 0.0), "recorded: no answers"),
        ({UPDATES: 0.0}, "recorded: no update"),
    ],
)
def test_there_is_no_verdict_where_the_extractor_has_not_worked(totals: dict[str, float], said: str) -> None:
    """Answers that cannot be read write nothing to the bank, and are nothing to train on."""
    rows = rounds([(1.0, 1.0), (1.0, 1.0)])
    for changed in rows:
        if changed["arm"] == "recorded":
            changed["metrics"] |= {name: total * changed["step"] for name, total in totals.items()}
    text = verdict(Measured(rows))
    assert text.startswith("NO VERDICT") and text.endswith(f": {said}")


def test_rounds_beside_which_others_have_used_the_cores_are_left_out() -> None:
    rows = rounds([(1.0, 1.0)] * 3)
    rows[5]["others"], rows[-1]["others"] = 0.11, 0.1
    assert {row["round"] for row in quiet(rows)} == {1, 2}


def test_processes_of_a_kind_are_added_up_and_averaged_over_rounds() -> None:
    rows = [row(arm, number, 0, 1.0) for arm in ARMS for number in (0, 1)]
    for changed in rows:
        if changed["round"] == 1 and changed["arm"] == "idle":
            changed["cores"] = {"x 1": 0.5, "x 2": 0.25}
    assert "| x | 0.25 | 0.25 | 0.25 | 0.25 | 0.50 | 0.25 |" in processes(rows)


def test_arms_that_were_not_measured_are_left_out() -> None:
    rows = [changed for changed in rounds([(1.0, 1.1), (1.0, 1.1)]) if changed["arm"] in ("baseline", "idle")]
    lines = report(Measured(rows)).splitlines()
    assert [line.split(" | ")[0] for line in lines[3:]] == ["| baseline", "| idle"]
    assert verdict(Measured(rows)) == "idle: 1.100 (1.100 to 1.100), target NOT MET (at most 1.03)"
    assert processes(rows).startswith("| process, cores | baseline | idle |")
