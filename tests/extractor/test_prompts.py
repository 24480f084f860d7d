"""The extractor's prompts."""

import pytest

from verl_comprl.experience.schema import Turn
from verl_comprl.extractor.prompts import answer_messages, distill_messages, merge_messages, render_trajectory


def test_a_trajectory_lists_every_observation_with_its_answer() -> None:
    turns = [Turn(observation="dark", response="light"), Turn(observation="bright", response="go")]
    assert render_trajectory(turns) == (
        "Turn 1\nObservation:\ndark\nAnswer:\nlight\n\nTurn 2\nObservation:\nbright\nAnswer:\ngo"
    )
    assert render_trajectory([]) == ""


@pytest.mark.parametrize(("success", "word"), [(True, "success"), (False, "failure")])
def test_distillation_shows_task_numbered_experience_episode_and_outcome(success: bool, word: str) -> None:
    system, user = distill_messages("find the key", ["first", "second"], "TURNS", success, max_operations=2)
    assert (system["role"], user["role"]) == ("system", "user")
    assert "list of 1 to 2 operations" in system["content"]
    parts = ["Task:\nfind the key", "1. first\n\n2. second", "Episode:\nTURNS", f"Outcome: {word}"]
    positions = [user["content"].index(part) for part in parts]
    assert positions == sorted(positions)


def test_missing_experience_is_shown_as_none() -> None:
    assert "Earlier experience:\n(none)" in distill_messages("goal", [], "TURNS", True)[1]["content"]


def test_merge_numbers_the_entries_and_answer_shows_entry_and_question() -> None:
    assert merge_messages(["x", "y"])[1]["content"] == "Entries:\n1. x\n\n2. y"
    assert answer_messages("the entry", "where?")[1]["content"] == "Experience:\nthe entry\n\nQuestion:\nwhere?"


def test_text_that_looks_like_a_placeholder_stays_text() -> None:
    text = "pay $goal or ${outcome} or $ or {x} or %s"
    assert text in distill_messages("g", [text], text, True)[1]["content"]
    assert text in answer_messages(text, text)[1]["content"]
