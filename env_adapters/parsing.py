"""Extracts actions and tool calls from model messages.

Owns the answer formats shared by the families: an action in tags, or a tool call in Hermes format. Each family defines
which actions exist and what they do.
"""

import json
from typing import Any

_OPEN, _CLOSE = "<action>", "</action>"
_OPEN_CALL, _CLOSE_CALL = "<tool_call>", "</tool_call>"


def extract_action(message: str) -> str:
    """Return the text of the action in ``message``, as the model wrote it.

    Everything up to the last ``</think>`` is dropped, then the last ``<action>`` tag counts. Its closing tag may be
    missing, because a server that stops on ``</action>`` cuts it off. Without a tag the whole rest is the action.
    Takes time linear in the message's length.

    Args:
        message: The model's whole message; any text.

    Returns:
        The action without surrounding white space; may be empty.
    """
    answer = message.rpartition("</think>")[2]
    _, tag, tail = answer.rpartition(_OPEN)
    return (tail.partition(_CLOSE)[0] if tag else answer).strip()


def is_one_action(message: str) -> bool:
    """Return whether ``message`` has at most one ``<action>`` tag after its thoughts and nothing behind that action."""
    answer = message.rpartition("</think>")[2]
    return answer.count(_OPEN) <= 1 and not answer.partition(_CLOSE)[2].strip()


def match_action(action: str, allowed: list[str]) -> str | None:
    """Return the entry of ``allowed`` equal to ``action`` up to case and runs of white space, else None."""
    words = action.casefold().split()
    return next((entry for entry in allowed if entry.casefold().split() == words), None)


def extract_tool_call(message: str) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of the last tool call in ``message``, else None.

    The format is Hermes', used by Qwen and others: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``. As with
    actions, text before ``</think>`` is ignored and the closing tag may be missing.

    Args:
        message: The model's whole message; any text.
    """
    _, tag, tail = message.rpartition("</think>")[2].rpartition(_OPEN_CALL)
    if not tag:
        return None
    try:
        call = json.loads(tail.partition(_CLOSE_CALL)[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments", {})
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None
