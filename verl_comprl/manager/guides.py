"""Chooses the entry that guides an episode: in training one per rollout or per prompt, sometimes a little used one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cachetools import LRUCache

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.retrieval.retriever import Retrieval

REMEMBERED_PROMPTS = 4096
"""Prompts whose choice is kept, the latest ones. All rollouts of a prompt start within a step."""
RETRIEVAL_SECONDS = 30.0
"""Limit of a retrieval. No rollout waits longer for its guide (``rollout.guidance``), but its call would go on for ever
if the embedder hangs, and take one of the calls that a manager answers at the same time."""


@dataclass(frozen=True)
class Choice:
    """Entry for an episode, and whether it was drawn by exploration."""

    retrieval: Retrieval
    explored: bool


class Guides:
    """Retrieves for episodes (``comprl.exploration``, ``comprl.guide_per``)."""

    def __init__(
        self,
        bank: ExperienceBank,
        *,
        exploration: float,
        per: Literal["rollout", "prompt"],
        fail: Callable[[str, Exception], None],
    ) -> None:
        """Retrieve from ``bank``.

        Args:
            bank: The bank; its generator decides what explores.
            exploration: Share of the choices that are drawn from the least used entries.
            per: What a choice is made for.
            fail: Counts a failure.
        """
        self._bank = bank
        self._exploration = exploration
        self._per = per
        self._fail = fail
        # Tasks, not results: rollouts of a prompt that ask at the same time wait for the same retrieval.
        self._of_prompt: LRUCache[str, asyncio.Task[Choice]] = LRUCache(REMEMBERED_PROMPTS)

    async def choose(self, query: str, task: str, environment: str, *, prompt: str) -> Choice:
        """Return the entry for a training rollout of ``prompt``: an id that no other step uses, or "" for none."""
        if self._per == "rollout" or not prompt:
            return await self._draw(query, task, environment)
        if prompt not in self._of_prompt:
            self._of_prompt[prompt] = asyncio.create_task(self._draw(query, task, environment))
        # Shielded: a rollout that is cancelled must not cancel the retrieval that its siblings wait for.
        return await asyncio.shield(self._of_prompt[prompt])

    async def _draw(self, query: str, task: str, environment: str) -> Choice:
        explores = self._bank.random.random() < self._exploration
        retrieval = await self.retrieve(query, task=task, environment=environment, explore=explores)
        return Choice(retrieval, explores and retrieval.entry is not None)

    async def retrieve(self, query: str, **options: Any) -> Retrieval:
        """Return what the bank retrieves, see there; ``degraded`` if it takes too long."""
        try:
            async with asyncio.timeout(RETRIEVAL_SECONDS):
                return await self._bank.retrieve(query, **options)
        except TimeoutError as error:
            self._fail("guide", error)
            return Retrieval("degraded", None, RETRIEVAL_SECONDS)
