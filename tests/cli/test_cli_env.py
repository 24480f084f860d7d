"""``comprl env``: the list, and episodes that are played through it."""

import io
import json
import sys
from collections.abc import Iterator

import pytest

from env_adapters import list_environments, make
from env_adapters.dataset import split_seeds
from env_adapters.registry import _registered, dataset_builder, register
from env_adapters.sokoban.environment import SokobanEnvironment
from verl_comprl.cli.env.play import first_messages
from verl_comprl.cli.main import main
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA


@pytest.fixture
def unusable() -> Iterator[str]:
    register("of-tomorrow", "no_such_module:Environment")
    yield "of-tomorrow"
    del _registered["of-tomorrow"]


def played(monkeypatch: pytest.MonkeyPatch, lines: list[str], *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["env", "play", *arguments])


def test_the_list_has_every_environment_and_says_what_is_missing(
    unusable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "list", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(rows) == list_environments()
    assert rows["sokoban"]["usable"] and rows["sokoban"]["options"]["size"] == 6
    assert not rows[unusable]["usable"] and "no_such_module" in rows[unusable]["problem"]
    assert main(["env", "list"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in rows)


def test_a_person_wins_with_the_moves_of_the_solution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = SokobanEnvironment(difficulty="easy")
    first, _ = environment.reset(seed=4)
    moves = environment.solution
    assert played(monkeypatch, [*moves, "up"], "sokoban", "-o", "difficulty=easy", "--seed", "4") == 0
    shown = capsys.readouterr().out
    assert environment.instructions in shown and f"{environment.goal}\n\nObservation:\n{first}" in shown
    for move in moves[:-1]:
        observation, *_ = environment.step(move)
        assert f"Observation:\n{observation}" in shown
    assert shown.splitlines()[-1] == f"success after {len(moves)} turns: reward 1, score 1"


def test_an_entry_is_shown_as_a_guided_actor_reads_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["frozenlake", "--seed", "0", "--max-turns", "1", "--experience", "go around \x1b[2J holes"]
    assert played(monkeypatch, ["fly"], *given) == 0
    shown = capsys.readouterr().out
    assert "<experience>\ngo around  [2J holes\n</experience>" in shown  # nothing that could control the terminal
    tools = shown.partition("--- tools ---\n")[2].partition("\n\n")[0]
    assert json.loads(tools) == SEARCH_AND_ASK_SCHEMA
    assert shown.splitlines()[-1] == "no success after 1 turn (out of turns): reward 0, score 0"


def test_a_free_episode_has_the_tools_of_its_environment_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, ["up"], "vaults")
    assert "--- tools ---" not in capsys.readouterr().out
    played(monkeypatch, ["ls"], "swebench", "--experience", "read first")
    tools = capsys.readouterr().out.partition("--- tools ---\n")[2].partition("\n\n")[0]
    names = [json.loads(line)["function"]["name"] for line in tools.splitlines()]
    assert len(names) > 1 and names[-1] == "search_and_ask"


def test_the_end_of_the_input_leaves_the_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, ["up"], "vaults") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "left after 1 turn"


@pytest.mark.parametrize("name", ["frozenlake", "minihack", "sokoban", "vaults", "webshop", "alfworld", "swebench"])
def test_the_messages_are_those_of_the_dataset(name: str) -> None:
    given = {"minihack": {"variant": "room"}}.get(name, {})
    rows = dataset_builder(name)(split="val", count=1, **given)
    details = rows[0]["extra_info"]
    assert name in ("webshop", "alfworld", "swebench") or details["seed"] == split_seeds("val", 1)[0]
    environment = make(name, **json.loads(details["environment_options"]))
    observation, _ = environment.reset(seed=details["seed"])
    messages = first_messages(environment, observation, None)
    environment.close()
    assert messages[0] == rows[0]["prompt"][0]
    assert messages[1]["content"] == f"{rows[0]['prompt'][1]['content']}\n\nObservation:\n{observation}"
    assert len(messages) == len(rows[0]["prompt"])
