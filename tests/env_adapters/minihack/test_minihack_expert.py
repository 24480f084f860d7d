"""MiniHack's scripted player, on maps with a known best move and on the real game."""

import pytest

import env_adapters
from env_adapters.minihack.expert import ScriptedPolicy


def screen(rows: list[str], legend: str) -> str:
    blank = "~" * 9
    picture = [blank] * (4 - rows.index(next(row for row in rows if "@" in row))) + rows
    picture += [blank] * (9 - len(picture))
    return "\n".join([*(" ".join(row) for row in picture), f"Legend: {legend}", "Message: (none)", "Hit points: 9/9"])


@pytest.mark.parametrize(
    ("rows", "legend", "action"),
    [
        (["~~~~@..>~"], "@ you, > staircase down (goal), . floor, ~ unseen or rock", "move east"),
        (["~~~.~~~~~", "~~>~@~~~~", "~~~.~~~~~"], "@ you, > staircase down (goal), . floor, ~ unseen or rock", None),
        (
            ["~~~~..~~~", "~~~~@|>~~", "~~~~~~~~~"],
            "@ you, > staircase down (goal), . floor, | wall, ~ unseen or rock",
            "move northeast",
        ),
        (
            ["~~~~...~~", "~~~~@^.>~"],
            "@ you, > staircase down (goal), . floor, ^ teleportation trap, ~ unseen or rock",
            "move northeast",
        ),
        (
            ["~~~~@^>~~"],
            "@ you, > staircase down (goal), ^ teleportation trap, ~ unseen or rock",
            "move east",
        ),
        (
            ["~~~d@..>~"],
            "@ you, > staircase down (goal), d jackal (monster), . floor, ~ unseen or rock",
            "move west",
        ),
        (
            ["~~~d@>~~~"],
            "@ you, > staircase down (goal), d jackal (monster), ~ unseen or rock",
            "move east",
        ),
        (
            ["~~~~.~~~~", "~~~~@`.}~", "~~~~.~~~~"],
            "@ you, ` boulder, . floor, } water, ~ unseen or rock",
            "move east",
        ),
    ],
)
def test_the_first_move_on_a_known_map(rows: list[str], legend: str, action: str | None) -> None:
    chosen = ScriptedPolicy().act(screen(rows, legend))
    assert chosen == action if action else chosen in ("move northwest", "move southwest")


def test_the_map_is_found_below_an_invalid_action_notice() -> None:
    observation = screen(["~~~~@..>~"], "@ you, > staircase down (goal), . floor, ~ unseen or rock")
    assert ScriptedPolicy().act(f"Invalid action, nothing happened.\n{observation}") == "move east"


@pytest.mark.parametrize(
    ("variant", "turns", "least"),
    [
        ("room", 30, 100),
        ("room-random", 30, 100),
        ("room-ultimate", 30, 95),
        ("maze", 30, 80),
        ("keyroom", 30, 75),
        ("river-ford", 40, 55),
    ],
)
def test_wins_of_a_hundred_episodes(variant: str, turns: int, least: int) -> None:
    environment = env_adapters.make("minihack", variant=variant, max_turns=turns)
    wins = 0
    for seed in range(100):
        observation, info = environment.reset(seed=seed)
        policy = ScriptedPolicy()
        terminated = truncated = False
        while not (terminated or truncated):
            observation, _, terminated, truncated, info = environment.step(policy.act(observation))
            assert info["action_valid"]
        wins += info["success"]
    environment.close()
    assert wins >= least
