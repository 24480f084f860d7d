"""Order of the arms, the table, and the environment of equal work; nothing is trained."""

from typing import Any

import pytest

from benchmarks.fixed_turns import FixedTurns, fixed_turns_rows
from benchmarks.overhead import ARMS, UPDATES, order, processes, report


def test_every_second_round_runs_backwards() -> None:
    assert order(0) == [*ARMS] and order(1) == [*reversed(ARMS)] and order(2) == [*ARMS]


def row(arm: str, number: int, step: int, gen: float, updates: float = 0.0) -> dict[str, Any]:
    metrics = {"timing_s/gen": gen, "timing_s/step": 2 * gen, UPDATES: updates}
    return {"arm": arm, "round": number, "step": step, "metrics": metrics, "others": 0.5, "cores": {"x 1": 0.25}}


def test_only_steps_that_all_arms_have_are_compared() -> None:
    rows = [row(arm, 0, step, 1.0 + 0.1 * (arm == "idle"), 3.0 * step) for arm in ARMS for step in (0, 1)]
    rows.append(row("baseline", 1, 0, 100.0))
    lines = report(rows).splitlines()
    assert lines[0].startswith("2 steps")
    idle = next(line for line in lines if line.startswith("| idle"))
    cells = idle.strip("| ").split(" | ")
    assert cells[1:4] == ["1.100", "1.100 (1.100 to 1.100)", "2.200"]
    assert cells[-3:] == ["3.00", "0.0", "0.50"]  # 3 updates between the first and the last step of the turn


def test_processes_of_a_kind_are_added_up_and_averaged_over_rounds() -> None:
    rows = [row(arm, number, 0, 1.0) for arm in ARMS for number in (0, 1)]
    for changed in rows:
        if changed["round"] == 1 and changed["arm"] == "idle":
            changed["cores"] = {"x 1": 0.5, "x 2": 0.25}
    assert "| x | 0.25 | 0.25 | 0.50 | 0.25 |" in processes(rows)


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
