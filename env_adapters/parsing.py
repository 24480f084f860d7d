"""From a model's message to the action it names.

Owns the answer formats that families share: an action in tags, or a tool call in Hermes' form. Which actions exist, and
what they do, is each family's.
"""

import json
from typing import Any

_OPEN, _CLOSE = "<action>", "</action>"
_OPEN_CALL, _CLOSE_CALL = "<tool_call>", "</tool_call>"


def extract_action(message: str) -> str:
    """Return the text of the action in ``message``, as the model wrote it.

    Thoughts up to the last ``</think>`` are dropped, then the last ``<action>`` tag counts. Its closing tag may be
    missing, because a server that stops on ``</action>`` cuts it off. A message without a tag is taken as a whole.

    Args:
        message: The model's whole message; any text. Runs in time linear in its length.

    Returns:
        The action without surrounding white space, perhaps empty.
    """
    answer = message.rpartition("</think>")[2]
    _, tag, tail = answer.rpartition(_OPEN)
    return (tail.partition(_CLOSE)[0] if tag else answer).strip()


def match_action(action: str, allowed: list[str]) -> str | None:
    """Return the entry of ``allowed`` that ``action`` names, ignoring case and runs of white space, else None."""
    words = action.casefold().split()
    return next((entry for entry in allowed if entry.casefold().split() == words), None)


def extract_tool_call(message: str) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of the last tool call in ``message``, else None.

    The form is Hermes', which Qwen and others write: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``. As with
    actions, thoughts do not count and the closing tag may be missing.

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
