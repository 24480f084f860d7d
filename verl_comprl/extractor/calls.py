"""The extractor's calls: distil an episode into operations, merge bank entries, answer a question from an entry.

Owns the path from prompt to answer and generation record. ``Generate`` samples; the bank applies operations.
"""

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from verl_comprl.experience.schema import DistillationRequest, derive_id
from verl_comprl.experience.updates.parsing import ParsedAnswer, parse_answer, parse_distillation, parse_merge
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.extractor.prompt_encoder import Prompt, PromptEncoder, PromptTooLong, Tokenizer
from verl_comprl.extractor.prompts import Message, answer_messages, merge_messages


@dataclass(frozen=True)
class Sampling:
    """Sampling of every call."""

    temperature: float
    top_p: float
    top_k: int
    """Tokens to choose from; -1 for all."""
    max_tokens: int
    """Length of an answer."""


@dataclass(frozen=True)
class Generation:
    """One sampled response: token ids, their log-probs in nats, and the version of the weights.

    An endpoint gives text and token counts instead.
    """

    token_ids: list[int]
    log_probs: list[float]
    weight_version: int
    text: str | None = None
    """If not the decoded ``token_ids``."""
    usage: tuple[int, int] | None = None
    """Tokens of prompt and response, if not those of the prompt's ids and ``token_ids``."""


@dataclass(frozen=True)
class Transcript:
    """One call in words: messages of the prompt, the answer, and the numbers of their tokens."""

    messages: list[Message]
    answer: str
    tokens: tuple[int, int]


Generate = Callable[[Prompt], Awaitable[Generation]]
"""Samples one response: the extractor's back end."""


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
        tokens: Counter[str] | None = None,
    ) -> None:
        """Set up calls to one model.

        Args:
            tokenizer: The extractor's tokenizer; another one where the back end takes messages, which it then measures.
            generate: Samples a response from the extractor's back end.
            max_prompt_tokens: An episode whose prompt is longer loses turns, then text, from its middle.
            max_operations: Maximum number of operations in the answer to a distillation.
            votes: Whether a distillation may also vote on the entries that the episode read.
            tokens: Counts the tokens of all calls as ``prompt`` and ``response``.
        """
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(
            tokenizer, max_prompt_tokens=max_prompt_tokens, max_operations=max_operations, votes=votes
        )
        self.quote = self._encoder.quote
        """Makes a text of an entry that is to be merged a part of the prompt."""
        self._generate = generate
        self._max_prompt_tokens = max_prompt_tokens
        self._max_operations = max_operations
        self._votes = votes
        self._tokens: Counter[str] = Counter() if tokens is None else tokens
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")
        self.on_answer: Callable[[str, Transcript], None] = lambda call_id, transcript: None
        """Called with the id of each call that was answered."""

    async def distill(
        self, request: DistillationRequest, similar: Sequence[str] = ()
    ) -> tuple[ParsedAnswer, GenerationRecord]:
        """Distil a finished episode; the prompt numbers what the episode read, then ``similar`` entries, from 1."""
        # Not in the event loop, where the guides of a step would wait for the prompts of the episodes before.
        loop = asyncio.get_running_loop()
        prompt, read, listed = await loop.run_in_executor(self._thread, self._encoder.encode_episode, request, similar)
        # Derived, not random: the queue may deliver a request twice, and the bank must recognise the second call.
        call_id = derive_id(CallKind.DISTILL, request.id)
        answer, record = await self._call(CallKind.DISTILL, call_id, prompt, request.step)
        votable = read if self._votes else None
        return parse_distillation(answer, max_operations=self._max_operations, listed=listed, read=votable), record

    async def merge(
        self, texts: Sequence[str], step: int, *, listed: Sequence[str]
    ) -> tuple[ParsedAnswer, GenerationRecord]:
        """Merge bank entries, given with their records (``prompts.render_entry``); the prompt numbers them from 1.

        Args:
            texts: The entries.
            step: Current actor step.
            listed: Their ids.

        Raises:
            PromptTooLong: If the prompt does not fit. What the back end raises is passed on.
        """
        prompt = self._encoder.encode(merge_messages(texts))
        # Derived as well: a run that is resumed draws its batches in the same order, which depends on the ids. Texts
        # alone do not name a call, since entries may be exact copies; see `_call` for what the answer adds.
        call_id = derive_id(CallKind.MERGE, step, *listed, *texts)
        answer, record = await self._call(CallKind.MERGE, call_id, prompt, step)
        return parse_merge(answer, listed=len(texts)), record

    async def answer(self, experience: str, query: str, step: int) -> tuple[str | None, GenerationRecord]:
        """Answer a ``search_and_ask`` query from one entry; the text is ``None`` if the answer cannot be parsed."""
        prompt = self._encoder.encode(answer_messages(experience, query, quote=self.quote))
        answer, record = await self._call(CallKind.ANSWER, str(uuid.uuid4()), prompt, step)
        return parse_answer(answer), record

    async def _call(self, kind: CallKind, call_id: str, prompt: Prompt, step: int) -> tuple[str, GenerationRecord]:
        if len(prompt.ids) > self._max_prompt_tokens:
            raise PromptTooLong(f"{kind} prompt of {len(prompt.ids)} tokens exceeds {self._max_prompt_tokens}")
        generation = await self._generate(prompt)
        if not all(map(math.isfinite, generation.log_probs)):  # one of them would make a whole update's gradient NaN
            raise ValueError("the extractor's server returned a log-prob that is not finite")
        if kind is CallKind.MERGE:
            # A pass that a checkpoint interrupts is repeated after a resume, with the prompts of chunks that it left as
            # they were: what the second answer writes must not be trained with the tokens of the first.
            call_id = derive_id(call_id, generation.text or "", *generation.token_ids)
        sent, sampled = generation.usage or (len(prompt.ids), len(generation.token_ids))
        self._tokens.update(prompt=sent, response=sampled)
        record = GenerationRecord(
            id=call_id,
            kind=kind,
            prompt_ids=prompt.ids,
            response_ids=generation.token_ids,
            response_log_probs=generation.log_probs,
            weight_version=generation.weight_version,
            created_step=step,
        )
        text = generation.text
        if text is None:
            text = self._tokenizer.decode(generation.token_ids, skip_special_tokens=True)
        self.on_answer(call_id, Transcript(prompt.messages, text, (sent, sampled)))
        return text, record
