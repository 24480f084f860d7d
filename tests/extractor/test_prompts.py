"""The extractor's prompts."""

import pytest

from verl_comprl.experience.schema import Question, Turn
from verl_comprl.extractor.prompts import answer_messages, distill_messages, merge_messages, render_trajectory


def test_a_trajectory_lists_every_observation_with_its_answer() -> None:
    turns = [Turn(observation="dark", response="light"), Turn(observation="bright", response="go")]
    assert render_trajectory(turns) == (
        "Turn 1\nObservation:\ndark\nAnswer:\nlight\n\nTurn 2\nObservation:\nbright\nAnswer:\ngo"
    )
    assert render_trajectory([]) == ""


def test_a_trajectory_ends_with_the_final_observation() -> None:
    turns = [Turn(observation="a lake", response="go")]
    text = render_trajectory(turns, "You fell into a hole.")
    assert text == "Turn 1\nObservation:\na lake\nAnswer:\ngo\n\nFinal observation:\nYou fell into a hole."


def test_advice_stands_between_observation_and_answer_and_is_marked() -> None:
    asked = Question(query="where?", answer="to the left")
    (text,) = [render_trajectory([Turn(observation="dark", response="go", questions=(asked,))])]
    assert text == "Turn 1\nObservation:\ndark\nQuestion:\nwhere?\nAdvice:\nto the left\nAnswer:\ngo"


def test_missing_turns_are_stated_in_the_middle_and_numbers_continue_after_them() -> None:
    turns = [Turn(observation=name, response="go") for name in "abyz"]
    parts = render_trajectory(turns, "end", left_out=3).split("\n\n")
    assert [part.partition("\n")[0] for part in parts] == [
        "Turn 1", "Turn 2", "(3 turns left out)", "Turn 6", "Turn 7", "Final observation:",
    ]  # fmt: skip


@pytest.mark.parametrize(("success", "word"), [(True, "success"), (False, "failure")])
def test_distillation_shows_task_numbered_experience_episode_and_outcome(success: bool, word: str) -> None:
    experience = ["first", "second"]
    system, user = distill_messages("Move in turn.", "find the key", experience, "TURNS", success, max_operations=2)
    assert (system["role"], user["role"]) == ("system", "user")
    assert "list of 1 to 2 operations" in system["content"]
    parts = [
        "Rules:\nMove in turn.",
        "Task:\nfind the key",
        "1. first\n\n2. second",
        "Episode:\nTURNS",
        f"Outcome: {word}",
    ]
    positions = [user["content"].index(part) for part in parts]
    assert positions == sorted(positions)


def test_missing_experience_is_shown_as_none() -> None:
    assert "Earlier experience:\n(none)" in distill_messages("", "goal", [], "TURNS", True)[1]["content"]


def test_merge_numbers_the_entries_and_answer_shows_entry_and_question() -> None:
    assert merge_messages(["x", "y"])[1]["content"] == "Entries:\n1. x\n\n2. y"
    assert answer_messages("the entry", "where?")[1]["content"] == "Experience:\nthe entry\n\nQuestion:\nwhere?"


def test_text_that_looks_like_a_placeholder_stays_text() -> None:
    text = "pay $goal or ${outcome} or $ or {x} or %s"
    assert text in distill_messages(text, "g", [text], text, True)[1]["content"]
    assert text in answer_messages(text, text)[1]["content"]
