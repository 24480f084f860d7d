"""Answers of an endpoint that is the extractor of a run: readable ones to every kind of call."""

import re

from chat_endpoint import Messages

LESSON = "Walk towards cells that you have not seen yet."


def teach(messages: Messages) -> str:
    """Write an entry about every episode, keep what is to be merged, and answer every question."""
    prompt = messages[0]["content"]
    if prompt.startswith("You turn finished episodes"):
        return f'<answer>[{{"operation": "add", "title": "Explore", "content": "{LESSON}"}}]</answer>'
    if prompt.startswith("You keep the experience"):
        listed = [int(number) for number in re.findall(r"^(\d+)\. ", messages[1]["content"], re.MULTILINE)]
        return f'<answer>[{{"operation": "retain", "ids": {listed}}}]</answer>'
    return f"<answer>{LESSON}</answer>"
