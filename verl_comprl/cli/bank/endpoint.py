"""Arguments that name an OpenAI-compatible endpoint as the extractor, and the extractor's calls to it."""

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from verl_comprl.cli.local_model import reachable
from verl_comprl.cli.model_arguments import chosen_endpoint
from verl_comprl.extractor.calls import ExtractorCalls, Sampling
from verl_comprl.extractor.config import KEY_REFUSED
from verl_comprl.extractor.endpoint import Endpoint, EndpointError
from verl_comprl.extractor.prompts import Message
from verl_comprl.openai_client import reason

_CHARACTERS_PER_TOKEN = 3
"""Fewer than any common tokenizer has for English text, so that a prompt is rather cut too early than refused."""


class EstimatedTokenizer:
    """Measures prompts for an endpoint whose tokenizer is not at hand; the ids mean nothing."""

    def apply_chat_template(self, conversation: list[Message], **_: Any) -> list[int]:
        """Return as many ids as the messages have tokens, about."""
        characters = sum(len(message["content"]) for message in conversation)
        return [0] * -(-characters // _CHARACTERS_PER_TOKEN)

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        """Refuse: an endpoint returns text."""
        # A part of the interface that only models with token ids use.
        raise NotImplementedError("an endpoint returns text, not tokens")


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[ExtractorCalls]:
    """Yield the calls to the endpoint, which has answered a request; ``distill --local`` starts it.

    Raises:
        ImportError: If a local model has to be served, and vLLM is missing.
        ValueError: If an argument is wrong, the model cannot be served, or the endpoint refuses the request.
    """
    async with reachable(options) as options:
        endpoint, calls = await _connect(options)
        try:
            yield calls
        finally:
            await endpoint.close()


async def _connect(options: argparse.Namespace) -> tuple[Endpoint, ExtractorCalls]:
    config, key = chosen_endpoint(options)
    sampling = Sampling(temperature=options.temperature, top_p=1.0, top_k=-1, max_tokens=options.max_tokens)
    endpoint = Endpoint(config, key, sampling)
    try:
        await endpoint.check()
    except EndpointError as error:
        why = reason(error.__cause__ or error)
        if getattr(error.__cause__, "status_code", None) in KEY_REFUSED:
            why += f" (its key is read from {config.key_variable or 'nowhere'})"
        raise ValueError(f"--endpoint {config.url} with --model {config.model}: {why}") from error
    endpoint = Endpoint(config, key, sampling)  # the check has closed its connections
    calls = ExtractorCalls(
        EstimatedTokenizer(), endpoint, max_prompt_tokens=options.max_prompt_tokens, max_operations=3
    )
    return endpoint, calls
