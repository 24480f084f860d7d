"""Protocols: rules of playing and counting episodes that make numbers comparable with those of others.

Owns what a protocol can set in every family: the form of an answer, whether the allowed actions are shown with every
observation, and what an invalid action and a success give. Each family has a table of its protocols, which also hold
defaults of its options. The whole chat is the history in all of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from env_adapters.nearest import unknown_value

_LOST_TURN = re.compile(
    r"(A turn (in which you are blocked or answer )?with an invalid action is lost|An invalid action costs a turn)\."
)
_EXAMPLE = re.compile(r"<think>(.*?)</think><action>(.*?)</action>")
_FORM = "First think inside <think> </think>, then answer with exactly one action inside <action> </action>"
_LABELS = 'First write your thoughts after "Thought:", then exactly one action after "Action:", on a line of its own'


@dataclass(frozen=True, slots=True)
class Protocol:
    """Rules of an episode that a family's game does not decide.

    Attributes:
        form: ``action`` (the last ``<action>`` tag), ``answer`` (the last ``<answer>`` tag) or ``label`` (what follows
            the last ``Action:``, up to the end of the line).
        thinks: Whether a message is only valid with both ``<think>`` tags and both tags of the action.
        shows_actions: Whether the allowed actions are part of every observation.
        invalid_reward: Reward of an invalid action.
        invalid_ends: Whether an invalid action ends the episode.
        win_reward: Reward of the step that succeeds, instead of the family's; None for the family's.
        defaults: Values of the family's options that are not given.
    """

    form: str = "action"
    thinks: bool = False
    shows_actions: bool = False
    invalid_reward: float = 0.0
    invalid_ends: bool = False
    win_reward: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def unwrap(self, message: str) -> str | None:
        """Return the message in the form ``action``, None if it does not have the form of the protocol."""
        # Not by a regular expression, which takes quadratic time if a model repeats the tag.
        has_action = "</action>" in message.partition("<action>")[2]
        if self.thinks and not ("<think>" in message and "</think>" in message and has_action):
            return None
        if self.form == "answer":
            return message.replace("<answer>", "<action>").replace("</answer>", "</action>")
        if self.form == "label":
            _, label, rest = message.rpartition("Action:")
            return f"<action>{rest.strip().partition(chr(10))[0]}</action>" if label else None
        return message

    def reword(self, instructions: str) -> str:
        """Return a family's system prompt with the rules of the protocol."""
        if self.invalid_ends:
            instructions = _LOST_TURN.sub("An invalid action ends the episode, and you lose.", instructions)
        elif self.invalid_reward:
            cost = f"An invalid action costs a turn and {-self.invalid_reward:g} of the reward."
            instructions = _LOST_TURN.sub(cost, instructions)
        if self.form == "label":
            instructions = _EXAMPLE.sub(r"Thought: \1\nAction: \2", instructions.replace(_FORM, _LABELS))
        elif self.form == "answer":
            instructions = instructions.replace("<action>", "<answer>").replace("</action>", "</answer>")
        return instructions

    def show(self, observation: str, actions: list[str]) -> str:
        """Return an observation with the allowed actions, if the protocol shows them."""
        return f"{observation}\nAllowed actions: {', '.join(actions)}." if self.shows_actions else observation


PAPER = Protocol()
"""What this project follows by default, in families without options of their own."""


def choose(protocols: Mapping[str, Protocol], name: str, **given: Any) -> tuple[Protocol, dict[str, Any]]:
    """Return a protocol, and the given options with its defaults for those that are None.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in protocols:
        raise ValueError(unknown_value("protocol", name, protocols))
    protocol = protocols[name]
    return protocol, {
        option: protocol.defaults.get(option) if value is None else value for option, value in given.items()
    }
