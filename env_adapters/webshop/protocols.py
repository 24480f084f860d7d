"""Protocols of WebShop: the paper's, its authors' code and verl-agent's."""

from env_adapters.protocols import Protocol

PROTOCOLS = {
    "paper": Protocol(
        defaults={"observation_mode": "text_rich", "reward": "binary", "split_by": "product", "max_turns": 30}
    ),
    "authors": Protocol(
        form="label",
        shows_actions=True,
        defaults={"observation_mode": "text", "reward": "graded", "split_by": "none", "max_turns": 30},
    ),
    "verl-agent": Protocol(
        thinks=True,
        shows_actions=True,
        invalid_reward=-0.1,
        win_reward=10.0,
        defaults={"observation_mode": "text", "reward": "binary", "split_by": "goal", "max_turns": 15},
    ),
}
"""Protocols by name; their defaults are those of ``WebShopEnvironment``."""
