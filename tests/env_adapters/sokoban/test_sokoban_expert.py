"""Sokoban's scripted player, and the parser of observations that it uses."""

import pytest

from env_adapters.sokoban.environment import SokobanEnvironment
from env_adapters.sokoban.expert import ScriptedPolicy
from env_adapters.sokoban.observation import parse
from env_adapters.sokoban.search import solve


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_it_wins_every_episode_in_the_fewest_moves(difficulty: str) -> None:
    environment = SokobanEnvironment(difficulty=difficulty)
    for seed in range(60):
        observation, info = environment.reset(seed=seed)
        policy, moves = ScriptedPolicy(), 0
        while not info["success"]:
            observation, _, _, _, info = environment.step(policy.act(observation))
            moves += 1
            assert info["action_valid"] and moves <= len(environment.solution)


def test_it_replans_after_moves_that_it_did_not_choose() -> None:
    environment = SokobanEnvironment(difficulty="hard", max_turns=60)
    won = 0
    for seed in range(40):
        observation, _ = environment.reset(seed=seed)
        policy = ScriptedPolicy()
        observation, *_ = environment.step(policy.act(observation))
        for text in ("up", "left", "nonsense"):
            observation, *_ = environment.step(text)
        if solution := solve(environment.level):
            for _ in solution:
                observation, *_, info = environment.step(policy.act(observation))
            assert info["success"]
            won += 1
    assert won > 10  # where none of those moves pushed a box into a corner


def test_it_returns_an_action_in_an_unsolvable_position() -> None:
    environment = SokobanEnvironment()
    observation, _ = environment.reset(seed=0)
    rows = ["######", "#$__.#", "#____#", "#_$_.#", "#@___#", "######"]
    dead = "\n".join([*(" ".join(row) for row in rows), *observation.split("\n")[6:]])
    assert ScriptedPolicy().act(dead) in environment.admissible_actions


@pytest.mark.parametrize(
    "text", ["", "The episode is over.", "Legend: none", "# # #\n# @ #\n# # #", "# # #\n# _ #\n# # #\n{legend}"]
)
def test_text_without_a_room_is_refused(text: str) -> None:
    legend = SokobanEnvironment().reset(seed=0)[0].split("\n")[6]
    with pytest.raises(ValueError, match="no Sokoban room"):
        parse(text.format(legend=legend))
