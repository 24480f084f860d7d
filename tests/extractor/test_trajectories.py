"""Episodes of a JSONL file: what becomes of their messages, and which lines are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.extractor.trajectories import read_episodes

MESSAGES = [
    {"role": "system", "content": "You may open and look."},
    {"role": "user", "content": "Open the vault."},
    {"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "content": "a red door"},
    {"role": "user", "content": [{"type": "text", "text": "go on"}, {"type": "image_url", "image_url": {}}]},
    {"role": "assistant", "content": "open"},
    {"role": "tool", "content": "It opens."},
]


def written(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def test_messages_become_turns(tmp_path: Path) -> None:
    episode = {"id": "7", "task": "vaults", "environment": "vaults", "success": True, "messages": MESSAGES, "cost": 3}
    (request,) = read_episodes(written(tmp_path, episode, ""))
    assert request.id == "7" and request.task == request.environment == "vaults"
    assert request.goal == "Open the vault." and request.instructions == "You may open and look."
    assert [turn.observation for turn in request.turns] == ["(none)", "a red door\n\ngo on"]
    assert request.turns[0].response == 'I look.\n<tool_call>{"name": "look", "arguments": "{}"}</tool_call>'
    assert request.turns[1].response == "open" and request.final_observation == "It opens."
    assert request.outcome.success and request.outcome.score == 1.0


def test_with_a_goal_the_first_user_message_is_an_observation(tmp_path: Path) -> None:
    (request,) = read_episodes(written(tmp_path, {"goal": "win", "success": False, "messages": MESSAGES[1:3]}))
    assert request.goal == "win" and request.turns[0].observation == "Open the vault."
    assert not request.outcome.success and request.outcome.score == 0.0


def test_an_episode_without_an_id_gets_the_same_one_every_time(tmp_path: Path) -> None:
    one = {"success": True, "messages": MESSAGES}
    first, second = read_episodes(written(tmp_path, one, one, {**one, "success": False}))
    assert first.id != second.id
    assert [request.id for request in read_episodes(written(tmp_path, one))] == [first.id]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1 is not JSON"),
        ([{"messages": MESSAGES}], "line 1: success: Field required"),
        ([{"success": True, "messages": [{"role": "robot"}]}], "line 1: messages.0.role: "),
        ([{"success": True, "messages": MESSAGES[:2]}], "line 1: it has no assistant message"),
        ([{"success": True, "messages": MESSAGES[5:6]}], "line 1: it has neither a goal nor a user message"),
        ([{"id": "a", "success": True, "messages": MESSAGES}] * 2, "line 2: the id 'a' is that of an earlier line"),
    ],
)
def test_a_line_that_is_no_episode_is_named(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line \d") as caught:
        read_episodes(written(tmp_path, *lines))
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl does not exist"):
        read_episodes(tmp_path / "none.jsonl")
