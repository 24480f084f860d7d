"""Chooses the entry that guides a training episode: one per rollout or one per prompt, sometimes a little used one."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.retrieval.retriever import Retrieval

REMEMBERED_PROMPTS = 4096
"""Prompts whose choice is kept, the latest ones. All rollouts of a prompt start within a step."""


@dataclass(frozen=True)
class Choice:
    """Entry for an episode, and whether it was drawn by exploration."""

    retrieval: Retrieval
    explored: bool


class Guides:
    """Retrieves for training episodes (``comprl.exploration``, ``comprl.guide_per``)."""

    def __init__(self, bank: ExperienceBank, *, exploration: float, per: Literal["rollout", "prompt"]) -> None:
        """Retrieve from ``bank``.

        Args:
            bank: The bank; its generator decides what explores.
            exploration: Share of the choices that are drawn from the least used entries.
            per: What a choice is made for.
        """
        self._bank = bank
        self._exploration = exploration
        self._per = per
        # Tasks, not results: rollouts of a prompt that ask at the same time wait for the same retrieval.
        self._of_prompt: LRUCache[str, asyncio.Task[Choice]] = LRUCache(REMEMBERED_PROMPTS)

    async def choose(self, query: str, task: str, environment: str, *, prompt: str) -> Choice:
        """Return the entry for a rollout of ``prompt``: an id that no other step uses, or "" for none."""
        if self._per == "rollout" or not prompt:
            return await self._retrieve(query, task, environment)
        if prompt not in self._of_prompt:
            self._of_prompt[prompt] = asyncio.create_task(self._retrieve(query, task, environment))
        # Shielded: a rollout that is cancelled must not cancel the retrieval that its siblings wait for.
        return await asyncio.shield(self._of_prompt[prompt])

    async def _retrieve(self, query: str, task: str, environment: str) -> Choice:
        explores = self._bank.random.random() < self._exploration
        retrieval = await self._bank.retrieve(query, task=task, environment=environment, explore=explores)
        return Choice(retrieval, explores and retrieval.entry is not None)
