"""Turns a scripted conversation into the tokens of a run, for any chat template.

The tokens of a run are not those of the conversation rendered at once: tools that the template ignores are described
in the system message, a turn is encoded without what surrounds it, and generation stops at the end token.
"""

from collections.abc import Sequence
from typing import Any

from recipes.tiny_models.warm_start import IGNORED, Example
from verl_comprl.rollout.chat_template import describe_tools, shows_tools, tool_response
from verl_comprl.rollout.messages import Message


class Stream:
    """Tokens between the turns of one conversation."""

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        """Start before the first message.

        Args:
            tokenizer: Its end token must end a turn.
            tools: Schemas shown to the model, if any.
        """
        self._tokenizer = tokenizer
        shown = list(tools) or None
        self._described = shown if shown and not shows_tools(tokenizer) else None
        self._tools = None if self._described else shown
        self._prompt: str | None = None
        self._count = 0

    def context(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens after the last turn, without its end token, up to where the model writes the next.

        Args:
            messages: The whole conversation so far, the last turn and what came after it included.

        Raises:
            ValueError: If the template renders what came before differently now.
        """
        known = ""
        if self._prompt is not None:
            known = f"{self._prompt}{messages[self._count]['content']}{self._tokenizer.eos_token}"
        self._count = len(messages)
        if self._described:
            messages = describe_tools(messages, self._described)
            messages = [tool_response(each["content"]) if each["role"] == "tool" else each for each in messages]
        prompt = self._tokenizer.apply_chat_template(
            list(messages), tools=self._tools, tokenize=False, add_generation_prompt=True
        )
        if not prompt.startswith(known):
            raise ValueError(f"the chat template does not keep what was before message {self._count}: {known[-80:]!r}")
        self._prompt = prompt
        return self._tokenizer.encode(prompt[len(known) :], add_special_tokens=False)

    def turn(self, text: str) -> list[int]:
        """Return the tokens that the model writes, the end token included."""
        return self._tokenizer.encode(f"{text}{self._tokenizer.eos_token}", add_special_tokens=False)


def encode(tokenizer: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> Example:
    """Turn a conversation into ids and labels, with loss on what the model writes.

    Args:
        tokenizer: As for ``Stream``.
        messages: The conversation; what follows the last message of the assistant is left out.
        tools: As for ``Stream``.

    Returns:
        ``input_ids`` and ``labels``, of equal length.

    Raises:
        ValueError: If the template is none that a stream can be made with.
    """
    stream = Stream(tokenizer, tools)
    ids: list[int] = []
    labels: list[int] = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            context, turn = stream.context(messages[:index]), stream.turn(message["content"])
            ids += [*context, *turn]
            labels += [IGNORED] * len(context) + turn
    return {"input_ids": ids, "labels": labels}
