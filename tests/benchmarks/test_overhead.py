"""Order of the arms, the table, and the environment of equal work; nothing is trained."""

from typing import Any

import pytest

from benchmarks.fixed_turns import FixedTurns, fixed_turns_rows
from benchmarks.overhead import ARMS, blocks, report


def test_arms_take_turns_forwards_and_backwards_and_what_is_done_is_not_repeated() -> None:
    order = blocks(2, set())
    assert [arm for _, arm in order] == [*ARMS, *reversed(ARMS)]
    assert blocks(2, {(0, "baseline"), (1, "normal")}) == [block for block in order[1:] if block != (1, "normal")]


def row(arm: str, block: int, step: int, gen: float) -> dict[str, Any]:
    return {"arm": arm, "block": block, "step": step, "metrics": {"timing_s/gen": gen, "timing_s/step": 2 * gen}} | {
        "others": 0.0,
        "cores": {},
    }


def test_only_steps_that_all_arms_have_are_compared() -> None:
    rows = [row(arm, 0, step, 1.0 + 0.1 * (arm == "idle")) for arm in ARMS for step in (3, 4)]
    rows.append(row("baseline", 1, 3, 100.0))
    lines = report(rows).splitlines()
    assert lines[0].startswith("2 steps")
    idle = next(line for line in lines if line.startswith("| idle"))
    assert idle.split(" | ")[1:4] == ["1.100", "1.100 (1.100 to 1.100)", "2.200"]


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
    assert {row["extra_info"]["environment"] for row in rows} == {"fixed_turns:FixedTurns"}
