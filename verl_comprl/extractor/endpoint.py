"""An OpenAI-compatible endpoint as the extractor's back end: vLLM, SGLang, Ollama, OpenAI.

Owns the requests and the checks of their answers. Retries, with backoff and Retry-After, are the client library's. It
sends chat messages and gets text, without log-probs under weights that could be trained.
"""

import asyncio
from functools import cached_property
from typing import Any, Self, cast

from openai import AsyncOpenAI, OpenAIError

from verl_comprl.extractor.calls import Generation, Sampling
from verl_comprl.extractor.config import EndpointConfig
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.extractor.prompts import Message
from verl_comprl.openai_client import CHAT_PATIENCE, message_of, open_client, reason, tokens_of
from verl_comprl.untrusted import break_tags

_SHOWN = 200
"""Characters of an unusable answer that its error shows."""
_CHECKED = 16
"""Tokens that the check at the start asks for."""


class EndpointError(ValueError):
    """The endpoint's answer cannot be used, or it refuses the requests of this run."""


class Endpoint:
    """Samples responses with ``POST <url>/chat/completions``.

    Pickled as its arguments: each process opens connections of its own.
    """

    def __init__(self, config: EndpointConfig, key: str, sampling: Sampling) -> None:
        """Set up, without a connection.

        Args:
            config: Where the endpoint is, and limits.
            key: Its key; "" if it needs none.
            sampling: Sent with every request; ``top_k``, which OpenAI's schema lacks, only where it limits.
        """
        self._config = config
        self._key = key
        self._sampling = sampling

    def __reduce__(self) -> tuple[type[Self], tuple[EndpointConfig, str, Sampling]]:
        """Return the arguments, without open connections."""
        return type(self), (self._config, self._key, self._sampling)

    async def __call__(self, prompt: Prompt) -> Generation:
        """Sample one response to the prompt's messages; token counts are those that the endpoint states, else 0.

        Raises:
            openai.OpenAIError: If there is no answer after all retries.
            EndpointError: If the answer cannot be used.
        """
        # The tokenizer that made the prompt need not be the one that reads it.
        messages = [
            message if message["role"] == "system" else message | {"content": break_tags(message["content"])}
            for message in prompt.messages
        ]
        answer = await self._request(messages, self._sampling.max_tokens)
        message = message_of(answer)
        content = getattr(message, "content", None)
        if message is None or not isinstance(content, str | None):
            raise EndpointError(f"the endpoint's answer has no message: {str(answer)[:_SHOWN]}")
        counts = tokens_of(answer, "prompt_tokens"), tokens_of(answer, "completion_tokens")
        # Without a text, as after a refusal, it is an answer that cannot be parsed.
        return Generation([], [], 0, text=content or "", usage=counts)

    async def check(self) -> None:
        """Request a few tokens, so that a wrong address, key, model or parameter shows before a run begins.

        Raises:
            EndpointError: If the endpoint does not answer as it should; the message names the settings.
        """
        try:
            await self._request([{"role": "user", "content": "Say yes."}], min(_CHECKED, self._sampling.max_tokens))
        except (OpenAIError, EndpointError) as error:
            raise EndpointError(
                f"comprl.extractor.endpoint.url={self._config.url} with model={self._config.model}: {reason(error)}"
            ) from error
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request(self, messages: list[Message], max_tokens: int) -> Any:
        sampling = self._sampling
        body = {"top_k": sampling.top_k} if sampling.top_k > 0 else {}
        async with self._in_flight:
            try:
                return await self._client.chat.completions.create(
                    model=self._config.model,
                    messages=cast(Any, messages),
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    extra_body=body | {self._config.length_parameter: max_tokens},
                )
            except (ValueError, RecursionError) as error:
                raise EndpointError(f"the endpoint's answer is not JSON: {error}") from error

    @cached_property
    def _client(self) -> AsyncOpenAI:
        config = self._config
        return open_client(
            config.url, self._key, timeout=config.timeout, patience=CHAT_PATIENCE, retries=config.retries
        )

    @cached_property
    def _in_flight(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self._config.max_concurrent)
