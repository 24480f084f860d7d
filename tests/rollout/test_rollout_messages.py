"""Chat messages that an actor reads."""

import pytest

from verl_comprl.rollout.messages import initial_messages, observation_message

PROMPT = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Reach the goal."}]


def test_task_experience_and_observation_are_in_one_user_message():
    messages = initial_messages(PROMPT, "a map", "Title\nDo this.")
    assert messages[0] == PROMPT[0]
    assert messages[1]["content"] == (
        "Reach the goal.\n\nExperience from earlier episodes (use it where it fits):\n<experience>\nTitle\nDo this.\n"
        "</experience>\n\nObservation:\na map"
    )
    assert PROMPT[1]["content"] == "Reach the goal."


def test_a_free_rollout_has_no_experience_block():
    assert initial_messages(PROMPT, "a map")[1]["content"] == "Reach the goal.\n\nObservation:\na map"
    assert observation_message("b")["content"] == "Observation:\nb"


@pytest.mark.parametrize("prompt", [[], PROMPT[:1]])
def test_a_prompt_without_a_task_is_refused(prompt):
    with pytest.raises(ValueError, match="must end with a user message"):
        initial_messages(prompt, "a map")
