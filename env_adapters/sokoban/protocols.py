"""Protocols of Sokoban: the paper's, its authors' code, verl-agent's and RAGEN's."""

from env_adapters.protocols import Protocol

PROTOCOLS = {
    "paper": Protocol(defaults={"boxes": 2, "difficulty": "medium", "max_turns": 30}),
    "authors": Protocol(form="answer", defaults={"boxes": 2, "difficulty": "any", "max_turns": 30}),
    "verl-agent": Protocol(
        thinks=True,
        shows_actions=True,
        invalid_reward=-0.1,
        win_reward=10.0,
        defaults={"boxes": 1, "difficulty": "any", "max_turns": 15},
    ),
    "ragen": Protocol(
        form="answer",
        invalid_reward=-0.1,
        win_reward=10.0,
        defaults={"boxes": 1, "difficulty": "any", "max_turns": 10},
    ),
}
"""Protocols by name; their defaults are those of ``SokobanEnvironment``. RAGEN's 5 turns of 2 moves are 10 of one."""
