"""The extractor's calls: distil an episode into operations, merge bank entries, answer a question from an entry.

Owns the path from prompt to tokens, answer and generation record. ``Generate`` samples; the bank applies operations.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_comprl.experience.schema import DistillationRequest, Turn, derive_id
from verl_comprl.experience.updates.parsing import ParsedAnswer, parse_answer, parse_distillation, parse_merge
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.extractor.prompts import (
    Message,
    answer_messages,
    distill_messages,
    merge_messages,
    render_trajectory,
)


@dataclass(frozen=True)
class Generation:
    """One sampled response: token ids, their log-probs in nats, and the version of the weights."""

    token_ids: list[int]
    log_probs: list[float]
    weight_version: int


Generate = Callable[[list[int]], Awaitable[Generation]]
"""Samples one response to a prompt's token ids."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that are used here."""

    def apply_chat_template(self, conversation: list[Message], **kwargs: Any) -> Any:
        """Render messages to token ids."""
        ...

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """Decode token ids to text."""
        ...


class ExtractorCalls:
    """Calls the extractor and returns each answer with the record that training needs."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        generate: Generate,
        *,
        max_prompt_tokens: int,
        max_operations: int,
        votes: bool = False,
    ) -> None:
        """Set up calls to one model.

        Args:
            tokenizer: The extractor's tokenizer.
            generate: Samples a response from the extractor's server.
            max_prompt_tokens: Turns are dropped from the middle of an episode whose prompt is longer.
            max_operations: Maximum number of operations in the answer to a distillation.
            votes: Whether a distillation may also vote on the entries it was shown.
        """
        self._tokenizer = tokenizer
        self._generate = generate
        self._max_prompt_tokens = max_prompt_tokens
        self._max_operations = max_operations
        self._votes = votes

    async def distill(
        self, request: DistillationRequest, experience: Sequence[str]
    ) -> tuple[ParsedAnswer, GenerationRecord]:
        """Distil a finished episode; ``experience`` are the texts that guided it, which the prompt numbers from 1."""
        prompt_ids = self._episode_prompt(request, experience)
        # Derived, not random: the queue may deliver a request twice, and the bank must recognise the second call.
        call_id = derive_id(CallKind.DISTILL, request.id)
        answer, record = await self._call(CallKind.DISTILL, call_id, prompt_ids, request.step)
        operations = parse_distillation(
            answer, max_operations=self._max_operations, listed=len(experience), votes=self._votes
        )
        return operations, record

    async def merge(self, texts: Sequence[str], step: int) -> tuple[ParsedAnswer, GenerationRecord]:
        """Merge a chunk of bank entries, which the prompt numbers from 1."""
        prompt_ids = self._encode(merge_messages(texts))
        answer, record = await self._call(CallKind.MERGE, str(uuid.uuid4()), prompt_ids, step)
        return parse_merge(answer, listed=len(texts)), record

    async def answer(self, experience: str, query: str, step: int) -> tuple[str | None, GenerationRecord]:
        """Answer a ``search_and_ask`` query from one entry; the text is ``None`` if the answer cannot be parsed."""
        prompt_ids = self._encode(answer_messages(experience, query))
        answer, record = await self._call(CallKind.ANSWER, str(uuid.uuid4()), prompt_ids, step)
        return parse_answer(answer), record

    async def _call(
        self, kind: CallKind, call_id: str, prompt_ids: list[int], step: int
    ) -> tuple[str, GenerationRecord]:
        if len(prompt_ids) > self._max_prompt_tokens:
            raise ValueError(f"{kind} prompt of {len(prompt_ids)} tokens exceeds {self._max_prompt_tokens}")
        generation = await self._generate(prompt_ids)
        record = GenerationRecord(
            id=call_id,
            kind=kind,
            prompt_ids=prompt_ids,
            response_ids=generation.token_ids,
            response_log_probs=generation.log_probs,
            weight_version=generation.weight_version,
            created_step=step,
        )
        return self._tokenizer.decode(generation.token_ids, skip_special_tokens=True), record

    def _encode(self, messages: list[Message]) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(ids)

    def _episode_prompt(self, request: DistillationRequest, experience: Sequence[str]) -> list[int]:
        """Encode an episode; drop turns from its middle until it fits, since start and end matter most."""
        turns = list(request.turns)
        while True:
            messages = distill_messages(
                request.goal,
                experience,
                _with_gap(turns, request),
                request.outcome.success,
                self._max_operations,
                votes=self._votes,
            )
            prompt_ids = self._encode(messages)
            if len(prompt_ids) <= self._max_prompt_tokens or len(turns) <= 2:
                return prompt_ids
            excess = 1 - self._max_prompt_tokens / len(prompt_ids)
            drop = min(len(turns) - 2, max(1, int(len(turns) * excess)))
            middle = (len(turns) - drop) // 2
            del turns[middle : middle + drop]


def _with_gap(turns: list[Turn], request: DistillationRequest) -> str:
    dropped = len(request.turns) - len(turns)
    if not dropped:
        return render_trajectory(turns)
    middle = len(turns) // 2
    gap = f"\n\n({dropped} turns left out)\n\n"
    return render_trajectory(turns[:middle]) + gap + render_trajectory(turns[middle:], first=middle + dropped + 1)
