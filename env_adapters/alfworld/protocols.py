"""Protocols of ALFWorld: the paper's, its authors' code and verl-agent's."""

from env_adapters.protocols import Protocol

PROTOCOLS = {
    "paper": Protocol(defaults={"reward": "signed", "max_turns": 40, "held_out": "valid_unseen"}),
    "authors": Protocol(
        form="answer",
        invalid_reward=-1.0,
        invalid_ends=True,
        defaults={"reward": "signed", "max_turns": 30, "held_out": "valid_unseen"},
    ),
    "verl-agent": Protocol(
        thinks=True,
        shows_actions=True,
        invalid_reward=-0.1,
        win_reward=10.0,
        defaults={"reward": "binary", "max_turns": 50, "held_out": "valid_seen"},
    ),
}
"""Protocols by name; their defaults are those of ``ALFWorldEnvironment``."""
