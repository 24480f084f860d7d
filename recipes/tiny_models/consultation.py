"""A call of ``search_and_ask`` in a scripted episode, and the reply to it."""

import json

from verl_comprl.experience.schema import Question
from verl_comprl.rollout.messages import Message


def consultation(question: Question, *, thought: str = "") -> list[Message]:
    """Return the actor's call, after a thought if one is given, and the message with the answer."""
    call = json.dumps({"name": "search_and_ask", "arguments": {"query": question.query}})
    before = f"<think>{thought}</think>\n" if thought else ""
    return [
        {"role": "assistant", "content": f"{before}<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": question.answer},
    ]
