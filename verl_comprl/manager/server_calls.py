"""Bounds generations of the extractor in time, and tells what concerns its server from a request that failed."""

from typing import Any

from verl_comprl.experience.busy import BUSY
from verl_comprl.extractor.calls import Generate, Generation
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.manager.availability import ExtractorGone, ExtractorUnreachable
from verl_comprl.platform.deaths import ACTOR_DIED
from verl_comprl.platform.pauses import episode_clock
from verl_comprl.platform.under_way import doing


def bounded(generate: Generate, seconds: float) -> Generate:
    """Return ``generate`` with a limit for each call.

    One whose server has died raises :class:`ExtractorGone`, one whose endpoint cannot be reached
    :class:`ExtractorUnreachable`.
    """

    async def generate_within(prompt: Prompt) -> Generation:
        try:
            with doing("generation of the extractor"):
                async with episode_clock().timeout(seconds):  # the actor's servers, which may be asked, pause
                    return await generate(prompt)
        except Exception as error:
            if is_dead(error):
                raise ExtractorGone(repr(error)) from error
            if is_unreachable(error):
                raise ExtractorUnreachable(repr(error)) from error
            raise

    return generate_within


def is_dead(error: Exception) -> bool:
    """Return whether a call to a vLLM server failed because its process, or that of its engine, has died."""
    # By name: vLLM takes seconds to import, and nothing else here needs it.
    return isinstance(error, ACTOR_DIED) or type(getattr(error, "cause", None)).__name__ == "EngineDeadError"


def is_unreachable(error: Exception) -> bool:
    """Return whether a request to an endpoint failed for a reason that is none of its own.

    A request that is late (408 too), or is answered with another error, may be the cause: it counts as failed, or the
    same episode could be tried for ever.
    """
    refused = getattr(error, "status_code", None) in BUSY - {408}
    return refused or type(error).__name__ == "APIConnectionError"  # openai's; a time-out is a class of its own


def raise_if_dead(server: Any) -> None:
    """Raise what calls would if the engine of a vLLM server had died; to be run in the server's process."""
    engine = getattr(server, "engine", None)  # none on a replica's further nodes
    if engine is not None and engine.errored:
        raise engine.dead_error
