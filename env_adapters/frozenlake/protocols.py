"""Protocols of FrozenLake: ours and RAGEN's."""

from env_adapters.protocols import Protocol

PROTOCOLS = {
    "paper": Protocol(defaults={"is_slippery": False, "max_turns": 30}),
    "ragen": Protocol(form="answer", invalid_reward=-0.1, defaults={"is_slippery": True, "max_turns": 10}),
}
"""Protocols by name, with defaults of ``FrozenLakeEnvironment``. RAGEN's 5 turns of 2 moves are 10 of one."""
