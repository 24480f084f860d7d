"""A model behind an OpenAI-compatible endpoint that plays: messages and tools in, the text of its answer out."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from openai import NOT_GIVEN, OpenAIError

from verl_comprl.cli.model_arguments import chosen_endpoint
from verl_comprl.display.first_line import first_line
from verl_comprl.openai_client import CHAT_PATIENCE, message_of, open_client, reason, tokens_of
from verl_comprl.record.redaction import text_redactor
from verl_comprl.rollout.messages import Message

_TIMEOUT = 600.0
"""Seconds for one answer, which may think for long."""
_REFUSED = (400, 413, 422)
"""Status of a request that is refused as such; TGI's for one that is too long is the last."""


class ChatError(ValueError):
    """The endpoint does not answer."""


class ChatRefused(ChatError):
    """It does not take the messages, for example because they are longer than the model's context."""


class Chat:
    """Asks the model of the command's arguments; retries, with backoff, are the client library's."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Set up, without a connection.

        Raises:
            ValueError: If an argument is wrong.
        """
        config, key = chosen_endpoint(options)
        self._client = open_client(config.url, key, timeout=_TIMEOUT, patience=CHAT_PATIENCE, retries=config.retries)
        self._place = f"--endpoint {config.url} with --model {config.model}"
        length = {config.length_parameter: options.max_tokens}
        self._sampling = {"model": config.model, "temperature": options.temperature, "extra_body": length}

    async def __call__(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
        """Return the model's answer and the number of its tokens, 0 if the endpoint does not state it.

        Raises:
            ChatRefused: If the endpoint refuses the request as such.
            ChatError: If there is no answer after all retries, or it has no message.
        """
        request = {**self._sampling, "messages": messages, "tools": tools or NOT_GIVEN}
        try:
            answer = await cast(Any, self._client.chat.completions).create(**request)
        except (OpenAIError, ValueError, RecursionError) as error:  # the others: what it has sent is no JSON
            refused = getattr(error, "status_code", None) in _REFUSED
            said = text_redactor()(reason(error))  # it may quote the key, or what the environment has shown
            raise (ChatRefused if refused else ChatError)(f"{self._place}: {said}") from error
        message = message_of(answer)
        if message is None:
            raise ChatError(f"{self._place}: an answer has no message")
        try:
            text = text_of(message.to_dict())
        except (AttributeError, KeyError, TypeError) as error:
            raise ChatError(f"{self._place}: an answer's message is of another form: {first_line(error)}") from error
        return text, tokens_of(answer, "completion_tokens")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def text_of(message: Mapping[str, Any]) -> str:
    """Return an answer's text with its tool calls, in Hermes format, and a question mark for what is no text."""
    calls = []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        try:
            call = json.dumps({"name": name, "arguments": json.loads(arguments)})
        except (ValueError, RecursionError):  # the environment refuses what is no JSON, as any other text
            call = json.dumps({"name": name, "arguments": arguments})
        calls.append(f"<tool_call>{call}</tool_call>")
    text = "\n".join([message.get("content") or "", *calls]).strip()
    return text.encode("utf-8", "replace").decode()  # with half a surrogate pair no further request could be sent
