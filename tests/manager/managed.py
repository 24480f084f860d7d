"""A manager with its parts in reach, and an extractor that answers from a script."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from waiting import until

from verl_comprl.experience import Add, ExperienceBank
from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.manager.manager import ExperienceManager

MakeRequest = Callable[..., DistillationRequest]
WHERE = ("fetch", "room")  # task and environment
RETURN = '<answer>[{"operation": "return"}]</answer>'


def answered(*operations: dict[str, Any]) -> str:
    return f"<answer>{json.dumps(operations)}</answer>"


LESSON = answered({"operation": "add", "title": "open the door", "content": "take the key first"})


class Extractor:
    """Replies per kind of call: a text, an exception to raise, a function of the prompt, or the next of a list of them.

    While ``gate`` is not set, every call waits; calls about ``failing`` raise; ``after`` is done with the n-th call.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {"distill": RETURN, "merge": "?", "answer": "<answer>try left</answer>"}
        self.prompts: list[tuple[str, str]] = []
        self.failing: str | None = None
        self.after: dict[int, Callable[[], None]] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, prompt: str) -> str:
        kind = "answer" if "Question:\n" in prompt else "merge" if "Entries:\n" in prompt else "distill"
        self.prompts.append((kind, prompt))
        await self.gate.wait()
        if call := self.after.get(len(self.prompts)):
            call()
        if self.failing and self.failing in prompt:
            raise RuntimeError(self.failing)
        reply = self.replies[kind]
        if isinstance(reply, list):
            reply = reply.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return str(reply(prompt)) if callable(reply) else reply


class Setup:
    """A manager with its parts in reach."""

    def __init__(self, manager: ExperienceManager, bank: ExperienceBank, calls: ExtractorCalls) -> None:
        self.manager = manager
        self.bank = bank
        self.calls = calls

    def start(self) -> None:
        self.manager.start(self.calls)

    async def seed(self, *titles: str, call_id: str = "seed", task: str = "fetch", step: int = 0) -> list[str]:
        """Put entries into the bank as if they had been imported."""
        operations = [Add(title=title, content=f"about {title}") for title in titles]
        report = await self.bank.apply(
            operations, call_id=call_id, listed=(), task=task, environment="room", step=step, weight_version=0
        )
        return list(report.new_ids)

    async def finished(self) -> dict[str, float]:
        assert await self.manager.drain(30)
        return await self.manager.metrics()


Open = Callable[..., Awaitable[Setup]]


async def merged(setup: Setup, passes: int = 1) -> None:
    async def done() -> bool:
        return (await setup.manager.metrics())["merge/passes"] == passes

    await until(done)
