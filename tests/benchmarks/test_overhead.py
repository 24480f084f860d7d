"""Order of the arms, the table, and the environment of equal work; nothing is trained."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf

from benchmarks.burden import burden
from benchmarks.fixed_turns import FixedTurns, fixed_turns_rows
from benchmarks.overhead import LENGTHS, lengths, main, order
from benchmarks.overhead_table import (
    ARMS,
    DISTILLED,
    GENERATED,
    UPDATES,
    Measured,
    processes,
    quiet,
    report,
    verdict,
)


def test_every_second_round_runs_backwards() -> None:
    arms = ["baseline", "recorded", "idle"]
    assert [order(number, arms) for number in range(3)] == [arms, ["idle", "recorded", "baseline"], arms]


def row(arm: str, number: int, step: int, gen: float, updates: float = 0.0) -> dict[str, Any]:
    metrics = {"timing_s/gen": gen, "timing_s/step": 2 * gen, GENERATED.format("free"): 64.0}
    if arm not in ("baseline", "burdened"):
        metrics |= {GENERATED.format("guided"): 64.0, "comprl/rollout/guided/seconds_guide": 0.002}
        written, returned, unreadable = DISTILLED
        metrics |= {UPDATES: updates, written: 6.0 * step, returned: 3.0 * step, unreadable: 1.0 * step}
    return {"arm": arm, "round": number, "step": step, "metrics": metrics, "others": 0.05, "cores": {"x 1": 0.25}}


def test_only_steps_that_all_arms_have_are_compared() -> None:
    rows = [row(arm, 0, step, 1.0 + 0.1 * (arm == "idle"), 3.0 * step) for arm in ARMS for step in (0, 1)]
    rows.append(row("baseline", 1, 0, 100.0))
    lines = report(Measured(rows)).splitlines()
    assert lines[0] == "2 steps of each arm, in 1 rounds"
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


def test_the_verdict_is_that_of_the_upper_bound() -> None:
    within, above = [(1.0, 1.02), (2.0, 2.04)], [(1.0, 1.02), (2.0, 2.1)]
    assert verdict(Measured(rounds(within))).splitlines() == [
        "recorded: 1.000 (1.000 to 1.000), target met (at most 1.03)",
        "idle: 1.020 (1.020 to 1.020), target met (at most 1.03)",
    ]
    assert verdict(Measured(rounds(above))).endswith("idle: 1.040 (1.020 to 1.050), target NOT MET (at most 1.03)")


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
    assert "| x | 0.25 | 0.25 | 0.25 | 0.50 | 0.25 |" in processes(rows)


def test_arms_that_were_not_measured_are_left_out() -> None:
    rows = [changed for changed in rounds([(1.0, 1.1), (1.0, 1.1)]) if changed["arm"] in ("baseline", "idle")]
    lines = report(Measured(rows)).splitlines()
    assert [line.split(" | ")[0] for line in lines[3:]] == ["| baseline", "| idle"]
    assert verdict(Measured(rows)) == "idle: 1.100 (1.100 to 1.100), target NOT MET (at most 1.03)"
    assert processes(rows).startswith("| process, cores | baseline | idle |")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--arms", "baseline", "idle"], "has rounds of baseline; other --arms need another --output"),
        (
            ["--arms", "baseline", "--turns", "64"],
            "has episodes of 64.0 tokens; other --turns need another --output",
        ),
    ],
)
def test_other_work_does_not_continue_what_was_measured(
    options: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "overhead.jsonl").write_text(json.dumps(row("baseline", 0, 0, 1.0)) + "\n")
    monkeypatch.setattr(sys, "argv", ["overhead", "--output", str(tmp_path), *options])
    with pytest.raises(SystemExit):
        main()
    assert error in capsys.readouterr().err


def test_episodes_of_more_turns_get_as_much_more_room() -> None:
    """Of 26 tokens a turn, as in the miniature: eight of the actor, the rest around them and of the environment."""
    settings = OmegaConf.from_dotlist(lengths(64))
    assert [OmegaConf.select(settings, key) for key in LENGTHS] == [64 * 26, 304 + 56 * 26]
    assert [OmegaConf.select(OmegaConf.from_dotlist(lengths(8)), key) for key in LENGTHS] == [208, 304]


def test_a_burden_computes_at_idle_priority_until_it_is_taken_away() -> None:
    with burden() as process:
        watched = psutil.Process(process.pid)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE and watched.nice() == 15
        used, deadline = watched.cpu_times().user, time.monotonic() + 60  # the machine may be busy
        while watched.cpu_times().user < used + 0.1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert process.returncode == -signal.SIGKILL


def test_a_burden_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="has ended"), burden() as process:
        process.kill()
        process.wait()
    monkeypatch.setattr("benchmarks.burden.sys.executable", "false")
    with pytest.raises(RuntimeError, match="has ended"), burden():
        raise AssertionError("it has begun")


@pytest.mark.parametrize("text", ["<action>left</action>", "anything at all", ""])
def test_an_episode_has_its_number_of_turns_whatever_is_played(text: str) -> None:
    environment = FixedTurns(max_turns=8)
    environment.reset(seed=0)
    ends = [environment.step(text)[2:] for _ in range(8)]
    assert [end[:2] for end in ends] == [(False, False)] * 7 + [(False, True)]
    assert all(end[2]["action_valid"] for end in ends)


def test_a_vault_that_is_opened_stays_open_for_the_rest_of_the_turns() -> None:
    environment = FixedTurns(max_turns=5)
    environment.reset(seed=0)
    played = [environment.step(move) for move in (*environment.vault.code, "left", "up")]
    assert [step[1] for step in played] == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert played[-1][3] and played[-1][4]["success"] and not any(step[2] for step in played)


def test_rows_name_an_environment_that_can_be_made() -> None:
    rows = fixed_turns_rows(2, turns=8)
    assert len(rows) == 6
    assert {row["extra_info"]["environment"] for row in rows} == {"benchmarks.fixed_turns:FixedTurns"}


def test_a_turn_takes_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.fixed_turns.time.sleep", slept.append)
    (row, *_) = fixed_turns_rows(1, turns=30, pause=0.05)
    environment = FixedTurns(**json.loads(row["extra_info"]["environment_options"]))
    environment.reset(seed=0)
    for _ in range(30):
        environment.step("up")
    assert len({*slept}) == 30 and 0 <= min(slept) < 0.02 and 0.03 < max(slept) <= 0.05
