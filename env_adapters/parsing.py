"""From a model's message to the action it names.

Owns the answer format that all families share. Which actions exist, and what they do, is each family's.
"""

_OPEN, _CLOSE = "<action>", "</action>"


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
