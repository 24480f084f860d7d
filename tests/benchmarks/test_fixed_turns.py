"""The environment of equal work: turns, rows and pauses."""

import json

import pytest

from benchmarks.fixed_turns import FixedTurns, fixed_turns_rows


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
    assert slept.pop(0) == 0.0  # of its beginning
    assert len({*slept}) == 30 and 0 <= min(slept) < 0.02 and 0.03 < max(slept) <= 0.05


def test_episodes_begin_at_different_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.fixed_turns.time.sleep", slept.append)
    (row, *_) = fixed_turns_rows(1, turns=8, start=0.3)
    environment = FixedTurns(**json.loads(row["extra_info"]["environment_options"]))
    for seed in range(30):
        environment.reset(seed=seed)
    assert len({*slept}) == 30 and 0 <= min(slept) < 0.1 and 0.2 < max(slept) <= 0.3
