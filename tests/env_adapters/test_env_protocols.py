"""Protocols of the families: first prompt, rewards, end conditions and form of an answer."""

from collections.abc import Iterator
from typing import Any

import pytest

import env_adapters
from env_adapters import TextEnvironment
from env_adapters.parsing import extract_action
from env_adapters.protocols import PAPER, Protocol
from env_adapters.sokoban.task import DIFFICULTIES

AGENT = "<think>So.</think><action>{}</action>"
ANSWER = "<answer>{}</answer>"


def start(name: str, seed: int = 0, **options: Any) -> tuple[TextEnvironment, str]:
    environment = env_adapters.make(name, **options)
    return environment, environment.reset(seed=seed)[0]


@pytest.fixture(scope="module")
def alfworld_games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Generated games, also in the folder of the games in rooms of training games."""
    pytest.importorskip("textworld")
    from env_adapters.alfworld.generator import make_games

    folder = tmp_path_factory.mktemp("games")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRL_DATA", str(folder / "cache"))
        make_games(folder, 1, seed=164)  # a seed with small rooms
        layout = folder / "json_2.1.1"
        (layout / "valid_seen").symlink_to(layout / "train")
        yield str(folder)


def win(environment: TextEnvironment, form: str) -> tuple[float, bool, dict[str, Any]]:
    """Play Sokoban's or FrozenLake's shortest way in the given form; return the last reward, its end and info."""
    for action in environment.solution:  # type: ignore[attr-defined]
        _, reward, terminated, _, info = environment.step(form.format(action))
    return reward, terminated, info


def test_the_paper_s_protocol_changes_nothing() -> None:
    for message in ("", "x", "<answer>up</answer>", "<action>up"):
        assert PAPER.unwrap(message) == message
    assert PAPER.reword("An invalid action costs a turn. <action>") == "An invalid action costs a turn. <action>"
    assert PAPER.show("Room", ["up"]) == "Room"


@pytest.mark.parametrize(
    ("protocol", "message", "action"),
    [
        (Protocol(form="answer"), "<answer>left</answer> no <answer> up </answer>", "up"),
        (Protocol(form="answer"), "<think><answer>left</answer></think><answer>up", "up"),
        (Protocol(form="label"), "Thought: Action: no\nAction: click[a b]\nThen more", "click[a b]"),
        (Protocol(form="label"), "click[a b]", None),
        (Protocol(thinks=True), "<think>x</think><action>up</action>", "up"),
        (Protocol(thinks=True), "<action>up</action>", None),
        (Protocol(thinks=True), "<think>x</think><action>up", None),
        (Protocol(thinks=True), "<think>x</think>up", None),
        (Protocol(thinks=True), "<think>x</think></action><action>up", None),
        (Protocol(thinks=True), "<think>x</think>" + "<action>" * 500_000, None),
    ],
)
@pytest.mark.timeout(60)  # the last message would take hours if it were searched again from every tag
def test_forms_of_an_answer(protocol: Protocol, message: str, action: str | None) -> None:
    unwrapped = protocol.unwrap(message)
    assert (None if unwrapped is None else extract_action(unwrapped)) == action


@pytest.mark.parametrize("name", ["alfworld", "frozenlake", "minihack", "sokoban", "webshop"])
def test_an_unknown_protocol_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown protocol 'mine'; known: paper, "):
        env_adapters.make(name, protocol="mine")


def test_alfworld_as_its_authors(alfworld_games: str) -> None:
    environment, first = start("alfworld", data=alfworld_games, protocol="authors")
    assert (
        environment.max_turns == 30
        and "Allowed actions" not in first
        and "You have 30 turns" in environment.instructions
    )
    assert "<answer>" in environment.instructions and "<action>" not in environment.instructions
    assert "ends the episode" in environment.instructions and "You have 30 turns" in environment.instructions
    go = next(action for action in environment.admissible_actions if action.startswith("go to"))
    assert environment.step(ANSWER.format(go))[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = environment.step(ANSWER.format("fly"))
    assert (reward, terminated, truncated, info["success"], info["action_valid"]) == (-1.0, True, False, False, False)
    assert environment.step(ANSWER.format(go))[:3] == ("The episode is over.", 0.0, True)
    held_out, _ = start("alfworld", 1, data=alfworld_games, protocol="authors")
    assert held_out.task_id.startswith("alfworld/valid_unseen/")


def test_alfworld_as_verl_agent(alfworld_games: str) -> None:
    from env_adapters.alfworld.expert import ScriptedPolicy

    environment, observation = start("alfworld", data=alfworld_games, protocol="verl-agent")
    assert environment.max_turns == 50 and "0.1 of the reward" in environment.instructions
    assert f"Allowed actions: {', '.join(environment.admissible_actions)}." in observation
    refused, reward, terminated, *_ = environment.step("<action>look</action>")  # without thoughts
    assert (reward, terminated) == (-0.1, False) and "Invalid action" in refused
    policy = ScriptedPolicy(environment.instructions)
    text, rewards, over = observation.partition("\nAllowed actions")[0], [], False
    while not over:
        action = extract_action(policy.act(text))
        text, reward, over, truncated, info = environment.step(AGENT.format(action))
        assert over or "\nAllowed actions: " in text
        text, over = text.partition("\nAllowed actions")[0], over or truncated
        rewards.append(reward)
    assert info["success"] and rewards == [0.0] * (len(rewards) - 1) + [10.0]
    # A truncated episode gives nothing, and held-out games are those in rooms of training games.
    environment, _ = start("alfworld", 1, data=alfworld_games, protocol="verl-agent", max_turns=1)
    assert environment.task_id.startswith("alfworld/valid_seen/")
    assert environment.step(AGENT.format("inventory"))[1:4] == (0.0, False, True)


def test_alfworld_s_options_win_over_the_protocol(alfworld_games: str) -> None:
    environment, _ = start("alfworld", 1, data=alfworld_games, held_out="valid_seen", max_turns=3)
    assert environment.task_id.startswith("alfworld/valid_seen/") and environment.max_turns == 3
    for last in (False, False, True):
        assert environment.step("<action>inventory</action>")[3] == last
    with pytest.raises(ValueError, match="unknown held_out 'test'; known: valid_unseen, valid_seen"):
        start("alfworld", 1, data=alfworld_games, held_out="test")


def buy(environment: Any, form: str) -> tuple[float, bool, dict[str, Any]]:
    """Buy what the goal was made from, with the scripted buyer."""
    from env_adapters.webshop.expert import ScriptedPolicy

    policy, over = ScriptedPolicy(environment.target), False
    while not over:
        observation, reward, over, _, info = environment.step(form.format(policy.act(environment.admissible_actions)))
        assert over or ("Allowed actions" in observation) == environment.protocol.shows_actions
    return reward, over, info


def test_webshop_as_its_authors() -> None:
    environment, first = start("webshop", data="synthetic", protocol="authors")
    assert environment.max_turns == 30 and "[SEP]" in first and first.endswith("Allowed actions: search[<query>].")
    assert "Thought: The instruction asks for size large.\nAction: click[large]" in environment.instructions
    assert environment.step("<action>search[x]</action>")[4]["action_valid"] is False
    assert environment.step("Thought: x.\nAction: search[side table]")[4]["action_valid"]
    asin = next(action for action in environment.admissible_actions if action.lower().startswith("click[w"))
    environment.step(f"Action: {asin}")
    _, reward, terminated, _, info = environment.step("Action: click[Buy Now]")
    assert terminated and reward == info["score"] < 1, "the reward is continuous"
    goals = environment.draws.goals  # type: ignore[attr-defined]
    assert goals["train"] == goals["val"]


def test_webshop_as_verl_agent() -> None:
    environment, first = start("webshop", 1, data="synthetic", protocol="verl-agent")
    assert environment.max_turns == 15 and "[SEP]" in first and "Allowed actions: " in first
    assert environment.step("<action>search[x]</action>")[1] == -0.1
    reward, over, info = buy(environment, AGENT)
    assert (reward, over, info["success"]) == (10.0, True, True)
    assert len(environment.draws.goals["val"]) == 500  # type: ignore[attr-defined]


def test_webshop_as_in_the_paper() -> None:
    environment, first = start("webshop", data="synthetic")
    assert environment.max_turns == 30 and "[button] Search [button_]" in first and "Allowed actions" not in first
    assert environment.step("nothing")[1:4] == (0.0, False, False)
    assert buy(environment, "<action>{}</action>")[:2] == (1.0, True)


def test_minihack_as_its_authors() -> None:
    pytest.importorskip("nle")
    environment, first = start("minihack", 3, variant="room-random", protocol="authors")
    spaced = start("minihack", 3, variant="room-random")[1]
    rows, expected = first.split("\n")[:9], [row.replace(" ", "") for row in spaced.split("\n")[:9]]
    assert rows == expected and all(len(row) == 9 for row in rows)
    assert "boulder" in first and "Allowed actions: north, northeast, east" in first
    assert "<answer>north</answer>" in environment.instructions and "move north" not in environment.instructions
    assert environment.step(ANSWER.format("move north"))[4]["action_valid"] is False
    assert environment.step(ANSWER.format("south"))[4]["action_valid"] is True
    assert environment.max_turns == 30
    environment.close()


@pytest.mark.parametrize(
    ("protocol", "form", "boxes", "turns", "reward", "penalty"),
    [
        ("paper", "<action>{}</action>", 2, 30, 1.0, 0.0),
        ("authors", ANSWER, 2, 30, 1.0, 0.0),
        ("verl-agent", AGENT, 1, 15, 10.0, -0.1),
        ("ragen", ANSWER, 1, 10, 10.0, -0.1),
    ],
)
def test_sokoban(protocol: str, form: str, boxes: int, turns: int, reward: float, penalty: float) -> None:
    environment, first = start("sokoban", 4, protocol=protocol)
    assert first.count("$") - 1 == boxes and environment.max_turns == turns  # one in the legend
    assert f"You have {turns} turns" in environment.instructions
    assert ("Allowed actions" in first) == (protocol == "verl-agent")
    assert environment.step("I do not know")[1:4] == (penalty, False, False)
    environment, _ = start("sokoban", 4, protocol=protocol, max_turns=40)
    assert win(environment, form)[:2] == (reward, True)


@pytest.mark.parametrize("protocol", ["paper", "authors", "verl-agent", "ragen"])
def test_only_the_papers_sokoban_has_a_band_of_solution_lengths(protocol: str) -> None:
    environment: Any = env_adapters.make("sokoban", protocol=protocol)
    lengths = []
    for seed in range(20):
        environment.reset(seed=seed)
        lengths.append(len(environment.solution))
    shortest, longest = DIFFICULTIES["medium"]
    assert all(shortest <= length <= longest for length in lengths) == (protocol == "paper"), lengths


def test_frozenlake_as_ragen() -> None:
    pytest.importorskip("gymnasium")
    environment, _ = start("frozenlake", protocol="ragen")
    assert (
        environment.max_turns == 10
        and "slippery" in environment.instructions
        and "<answer>" in environment.instructions
    )
    assert environment.step("x")[1] == -0.1 and environment.step(ANSWER.format("down"))[1] == 0.0
    environment, _ = start("frozenlake")
    assert environment.max_turns == 30 and "slippery" not in environment.instructions
    assert environment.step("x")[1] == 0.0
