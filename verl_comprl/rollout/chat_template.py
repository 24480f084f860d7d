"""Limits of a model's chat template, and the messages that get an episode past them.

Owns pure functions of a tokenizer: whether its template shows tools, the text that shows them otherwise, and the tokens
that end a turn. Templates and tokenizers are the user's; nothing here is about one model.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from verl.utils.tokenizer import normalize_token_ids

from verl_comprl.rollout.messages import Message
from verl_comprl.untrusted import added_tokens

_PROBE_NAME = "comprl_probe"
_PROBE = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "Text."}}},
    },
}


@lru_cache(maxsize=8)  # asked for every episode, of the one tokenizer of a worker
def shows_tools(tokenizer: Any) -> bool:
    """Return whether the chat template puts the schemas of tools into the prompt; many ignore them without a word."""
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Task."}]
    try:
        text = tokenizer.apply_chat_template(messages, tools=[_PROBE], tokenize=False, add_generation_prompt=True)
    except Exception:  # templates raise what they like, mostly jinja2's TemplateError
        return False
    return _PROBE_NAME in text


def describe_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with tools described in the system message, for a template that does not show them.

    Args:
        messages: The conversation's start; without a system message it gets one.
        tools: OpenAI function schemas. A call is to be written as verl's parser ``hermes`` reads it.
    """
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    calls = "\n".join(_example_call(tool["function"]) for tool in tools)
    text = (
        f"You can call these functions, each described by one JSON schema:\n<tools>\n{schemas}\n</tools>\n"
        f"To call one, answer with its name and arguments as JSON between <tool_call> and </tool_call>:\n{calls}"
    )
    first = dict(messages[0]) if messages else {}
    if first.get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    return [first | {"content": f"{first['content']}\n\n{text}"}, *messages[1:]]


def _example_call(function: Mapping[str, Any]) -> str:
    arguments = {name: "..." for name in function.get("parameters", {}).get("required", ())}
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def tool_response(content: str) -> Message:
    """Return a tool's answer as a user message, for a template that knows nothing of tools."""
    return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}


@lru_cache(maxsize=8)
def turn_closing(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that the template puts after an assistant's text: the end token, then what separates turns.

    Empty if the template puts no special token there.
    """
    after = _after_text(tokenizer, [])
    special = _special(tokenizer)
    ends = [index for index, token in enumerate(after) if token in special]
    return tuple(after[ends[0] :]) if ends else ()


def turn_end(tokenizer: Any) -> int | None:
    """Return the special token after an assistant's text within a conversation, at which a generation has to stop.

    In most templates it belongs to the turn; in some the next turn's first token ends it. ``None`` if there is none.
    """
    special = _special(tokenizer)
    after = _after_text(tokenizer, [{"role": "user", "content": "Next."}])
    return next((token for token in after if token in special), None)


def _after_text(tokenizer: Any, following: list[Message]) -> list[int]:
    """Return what a rendered conversation has after an assistant's text: what two of them have in common at the end."""
    before = {"role": "user", "content": "Task."}
    first, second = (
        normalize_token_ids(
            tokenizer.apply_chat_template(
                [before, {"role": "assistant", "content": text}, *following], tokenize=True, add_generation_prompt=False
            )
        )
        for text in ("A", "B")
    )
    common = 0
    while common < min(len(first), len(second)) and first[-1 - common] == second[-1 - common]:
        common += 1
    return first[len(first) - common :]


def _special(tokenizer: Any) -> set[int]:
    return {*tokenizer.all_special_ids, *added_tokens(tokenizer)}
