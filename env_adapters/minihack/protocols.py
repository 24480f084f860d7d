"""Protocols of MiniHack: the paper's and its authors' code."""

from env_adapters.protocols import Protocol

PROTOCOLS = {
    "paper": Protocol(defaults={"max_turns": 30, "compact": False}),
    "authors": Protocol(form="answer", shows_actions=True, defaults={"max_turns": 30, "compact": True}),
}
"""Protocols by name. ``compact``: directions without "move", symbols without spaces, one legend of all symbols."""
