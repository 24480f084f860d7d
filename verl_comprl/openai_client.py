"""The client of OpenAI-compatible endpoints: how it is opened, and what its errors and answers say."""

import asyncio
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from verl_comprl.display.first_line import first_line

_NO_KEY = "none"
"""Used for an endpoint without a key: the client requires one, local servers do not."""
_SHOWN = 200
"""Characters of an endpoint's answer that a message shows."""

_MOST_TOKENS = 2**31
"""Of one call; a larger number is none."""
CHAT_PATIENCE = 10.0
"""Times that a chat completion as a whole may take what an endpoint may be silent: some services send blank lines while
a request waits its turn, or the model thinks."""


def open_client(url: str, key: str | None, *, timeout: float, retries: int = 2, patience: float = 1.0) -> AsyncOpenAI:
    """Return a client, which retries with backoff by itself.

    Args:
        url: Up to and with the version: ``http://127.0.0.1:8000/v1``.
        key: The endpoint's; without one if it needs none.
        timeout: Seconds for which the endpoint may be silent.
        retries: Further attempts of a request.
        patience: Times as long as that, all of an attempt may take.
    """
    http = _PunctualClient(timeout * patience)
    return AsyncOpenAI(base_url=url, api_key=key or _NO_KEY, timeout=timeout, max_retries=retries, http_client=http)


class _PunctualClient(DefaultAsyncHttpxClient):
    """Limits a request as a whole; the client's own limit is for silence, not for an answer that comes in drops."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request and read its answer.

        Raises:
            httpx.ReadTimeout: If all of that takes too long, as the client raises it for a silent endpoint.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await super().send(request, **options)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no answer within {self._seconds:g} s") from error


def reason(error: BaseException) -> str:
    """Return the first line of the client's error, with what the endpoint answered if that line has the status only.

    The client quotes answers of OpenAI's own form; TGI, for one, sends another.
    """
    line, body = first_line(error), getattr(error, "body", None)
    answered = " ".join(str(body).split())[:_SHOWN] if body else ""
    return f"{line} - {answered}" if answered and line == f"Error code: {getattr(error, 'status_code', None)}" else line


def tokens_of(answer: Any, name: str) -> int:
    """Return a token count of an answer; 0 if it states none, or what cannot be one: the counts are added up."""
    count = getattr(getattr(answer, "usage", None), name, None)
    return count if type(count) is int and 0 < count < _MOST_TOKENS else 0


def message_of(answer: Any) -> Any | None:
    """Return the message of a chat completion, or None if there is none.

    The client makes objects of any JSON, whatever is missing, and returns what is not called JSON as text.
    """
    choices = getattr(answer, "choices", None)
    return getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
