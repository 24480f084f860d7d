"""Episodes of a JSONL file: what becomes of their messages, and which lines are refused."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.extractor.trajectories import read_episodes
from verl_comprl.record.lines import encode
from verl_comprl.record.step_files import StepFiles

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


def recorded(id: str, **changes: Any) -> dict[str, Any]:
    turn = {"observation": "a door", "response": "push", "valid": True, "reward": 0.0, "questions": []}
    asked = {"query": "key?", "answer": "under the mat", "status": "answered", "entry": "e"}
    return {
        "id": id,
        "kind": "training",
        "step": 3,
        "goal": "open it",
        "instructions": "You may push.",
        "turns": [turn, turn | {"response": "look", "questions": [asked]}],
        "unfinished": {"observation": "too long", "questions": []},
        "final_observation": "time is up",
        "outcome": {"success": False, "score": 0.25},
        "guide": {"entry": "e", "entry_text": "Push."},
    } | changes


def test_messages_become_turns(tmp_path: Path) -> None:
    episode = {"id": "7", "task": "vaults", "environment": "vaults", "success": True, "messages": MESSAGES, "cost": 3}
    (request,) = read_episodes(written(tmp_path, episode, ""))
    assert request.id.startswith("7:") and request.task == request.environment == "vaults"
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


def test_equal_names_in_two_files_are_different_episodes(tmp_path: Path) -> None:
    """Or what was distilled from Monday's log would stand for Tuesday's, whose episodes are numbered from 0, too."""
    monday, tuesday = ({"id": "0", "success": success, "messages": MESSAGES} for success in (True, False))
    (first,), (other,), (again,) = (read_episodes(written(tmp_path, line)) for line in (monday, tuesday, monday))
    assert first.id == again.id != other.id


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1 is not JSON"),
        (["[" * 100_000], "line 1 is not JSON"),
        ([{"messages": MESSAGES}], "line 1: success: Field required"),
        ([{"success": True, "messages": [{"role": "robot"}]}], "line 1: messages.0.role: "),
        ([{"success": True, "messages": MESSAGES[:2]}], "line 1: it has no assistant message"),
        ([{"success": True, "messages": MESSAGES[5:6]}], "line 1: it has neither a goal nor a user message"),
        ([recorded("a", step=10**30)], "line 1: step: Input should be less than "),
        (
            [recorded("a", outcome={"success": True, "score": math.nan})],
            "line 1: the outcome's score is nan, not",
        ),
        ([{"id": "a", "success": True, "messages": MESSAGES}] * 2, "line 2: the id 'a' is that of an earlier line"),
    ],
)
def test_a_line_that_is_no_episode_is_named(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line \d") as caught:
        read_episodes(written(tmp_path, *lines))
    assert message in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (request,) = read_episodes(written(tmp_path, "\ufeff" + json.dumps({"success": True, "messages": MESSAGES})))
    assert request.goal == "Open the vault."


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl does not exist"):
        read_episodes(tmp_path / "none.jsonl")


def test_half_an_emoji_costs_no_episode(tmp_path: Path) -> None:
    """Agents in JavaScript cut texts between the halves of a pair."""
    messages = [{"role": "user", "content": "Greet \ud83d"}, {"role": "assistant", "content": "hi 😀", "x\ude00": 1}]
    first, second = read_episodes(
        written(tmp_path, *({"success": True, "goal": goal, "messages": messages} for goal in ("", "win \ud83d")))
    )
    assert (first.goal, second.goal, second.turns[0].observation) == ("Greet ?", "win ?", "Greet ?")
    assert first.turns[0].response == "hi 😀" and first.model_dump_json()


def test_a_run_gives_its_training_episodes_that_were_played_to_their_end(tmp_path: Path) -> None:
    files = StepFiles(tmp_path / "episodes")
    for step, episodes in {
        10: [recorded("late")],
        9: [recorded("a"), recorded("b", outcome=None, turns=[]), recorded("c", kind="evaluation")],
    }.items():
        files.append(step, [encode(episode) + b"\n" for episode in episodes])
    (tmp_path / "episodes" / "step_11.jsonl.gz.part").write_bytes(b"half")
    found = read_episodes(tmp_path)
    assert [request.id.partition(":")[0] for request in found] == ["a", "late"]
    assert found == read_episodes(tmp_path / "episodes") and read_episodes(files.file(10)) == found[1:]
    request = found[0]
    assert [(turn.observation, turn.response) for turn in request.turns] == [
        ("a door", "push"), ("a door", "look"), ("too long", ""),
    ]  # fmt: skip
    assert [(asked.query, asked.answer) for asked in request.turns[1].questions] == [("key?", "under the mat")]
    assert (request.goal, request.instructions, request.step) == ("open it", "You may push.", 3)
    assert request.outcome.score == 0.25 and request.experience_ids == ()


def test_equal_ids_in_two_runs_are_different_episodes(tmp_path: Path) -> None:
    """As deterministic runs of one seed give them, or what was distilled from one run would stand for the other's."""
    for run, goal in (("one", "open it"), ("other", "close it"), ("copy", "open it")):
        StepFiles(tmp_path / run / "episodes").append(1, [encode(recorded("a", goal=goal)) + b"\n"])
    (one,), (other,), (copy,) = (read_episodes(tmp_path / run) for run in ("one", "other", "copy"))
    assert one.id == copy.id != other.id and one.id.startswith("a:")


def test_a_folder_without_episodes_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no episodes of a run: no episodes/step_N\.jsonl\.gz"):
        read_episodes(tmp_path)
    file = tmp_path / "step_1.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(recorded("a")).encode() * 50)[:-20])
    with pytest.raises(ValueError, match=r"step_1\.jsonl\.gz is damaged: "):
        read_episodes(file)
    file.write_bytes(gzip.compress(json.dumps(recorded("a", goal=None)).encode()))
    with pytest.raises(ValueError, match=r"step_1\.jsonl\.gz, line 1: goal: "):
        read_episodes(tmp_path)
