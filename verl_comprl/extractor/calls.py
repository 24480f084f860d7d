"""The extractor's calls: distil an episode into operations, merge bank entries, answer a question from an entry.

Owns the path from prompt to tokens, answer and generation record. ``Generate`` samples; the bank applies operations.
"""

import asyncio
import math
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from verl_comprl.experience.schema import DistillationRequest, Question, Turn, derive_id
from verl_comprl.experience.updates.parsing import ParsedAnswer, parse_answer, parse_distillation, parse_merge
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.extractor.prompts import (
    Message,
    answer_messages,
    distill_messages,
    merge_messages,
    render_trajectory,
)
from verl_comprl.untrusted import CHARACTERS_PER_TOKEN, without_control_tokens

_SHORTEST_TEXT = 200
"""Characters to which an observation or a response may be cut, so that an episode fits into a prompt."""
_ATTEMPTS = 6
"""To find out by their lengths how many turns fit."""
_USUAL = 4
"""Characters of a token, about; only the first attempt to shorten an episode depends on it."""
_FRAME = len(render_trajectory([Turn(observation="", response="")]))
"""Characters of a turn in a prompt that are not its texts."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as chat messages, and as the token ids that the calls' tokenizer makes of them."""

    messages: list[Message]
    ids: list[int]


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
        self._generate = generate
        self._max_prompt_tokens = max_prompt_tokens
        self._max_characters = CHARACTERS_PER_TOKEN * max_prompt_tokens
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
        prompt, read, listed = await loop.run_in_executor(self._thread, self._episode_prompt, request, similar)
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
        """
        prompt = self._prompt(merge_messages(texts))
        # Derived as well: a run that is resumed draws its batches in the same order, which depends on the ids. Texts
        # alone do not name a call, since entries may be exact copies; see `_call` for what the answer adds.
        call_id = derive_id(CallKind.MERGE, step, *listed, *texts)
        answer, record = await self._call(CallKind.MERGE, call_id, prompt, step)
        return parse_merge(answer, listed=len(texts)), record

    async def answer(self, experience: str, query: str, step: int) -> tuple[str | None, GenerationRecord]:
        """Answer a ``search_and_ask`` query from one entry; the text is ``None`` if the answer cannot be parsed."""
        prompt = self._prompt(answer_messages(experience, query))
        answer, record = await self._call(CallKind.ANSWER, str(uuid.uuid4()), prompt, step)
        return parse_answer(answer), record

    async def _call(self, kind: CallKind, call_id: str, prompt: Prompt, step: int) -> tuple[str, GenerationRecord]:
        if len(prompt.ids) > self._max_prompt_tokens:
            raise ValueError(f"{kind} prompt of {len(prompt.ids)} tokens exceeds {self._max_prompt_tokens}")
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

    def _prompt(self, messages: list[Message]) -> Prompt:
        if (characters := _characters(messages)) > self._max_characters:
            raise ValueError(f"a prompt of {characters} characters exceeds {self._max_prompt_tokens} tokens")
        # Here, after texts were cut and put together, either of which can form a token. The system message is ours.
        messages = [
            message
            if message["role"] == "system"
            else message | {"content": without_control_tokens(message["content"], self._tokenizer)}
            for message in messages
        ]
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return Prompt(messages, list(ids))

    def _episode_prompt(self, request: DistillationRequest, similar: Sequence[str]) -> tuple[Prompt, int, int]:
        """Encode an episode, and return the numbers of entries listed that it read, and of all that are listed.

        Until it fits, drop turns from its middle, then cut long texts in their middle, then drop entries from the end
        of the list, but not the guide. Start and end matter most: the first shows the situation, the last what decided
        the outcome.
        """
        read, similar = list(request.experience_texts), list(similar)
        final = request.final_observation

        def messages(turns: Sequence[Turn]) -> list[Message]:
            return distill_messages(
                request.instructions,
                request.goal,
                read,
                render_trajectory(turns, final, left_out=len(request.turns) - len(turns)),
                request.outcome.success,
                self._max_operations,
                similar=similar,
                votes=self._votes,
            )

        turns, prompt = self._with_most_turns(request.turns, messages)
        while prompt is None:
            prompt, length = self._fitting(messages(turns))
            if prompt is not None:
                break
            longest = max(map(len, (final, *(text for turn in turns for text in _texts(turn)))))
            if longest > _SHORTEST_TEXT:
                limit = max(_SHORTEST_TEXT, int(longest / length * 0.9))
                turns = [_shortened(turn, limit) for turn in turns]
                final = _cut(final, limit)
            elif similar or len(read) > 1:
                (similar or read).pop()
            else:
                return self._prompt(messages(turns)), 0, 0  # rules, task or guide alone are too long: it is refused
        return prompt, len(read), len(read) + len(similar)

    def _with_most_turns(
        self, turns: Sequence[Turn], messages: Callable[[Sequence[Turn]], list[Message]]
    ) -> tuple[Sequence[Turn], Prompt | None]:
        """Return the most turns with which a prompt fits, and that prompt; or first and last turn, if they do not.

        Encoding takes milliseconds for each thousand tokens, so a long episode begins at what may fit, and goes on
        where the lengths so far say that it does.
        """
        until = [0, *accumulate(_FRAME + sum(map(len, _texts(turn))) for turn in turns)]
        sizes = [until[kept // 2] + until[-1] - until[len(turns) - kept + kept // 2] for kept in range(len(turns) + 1)]
        room, enough, too_many = float(_USUAL * self._max_prompt_tokens), min(len(turns), 2) - 1, len(turns) + 1
        fitting, ends = None, dict[bool, tuple[int, float]]()
        attempts = 0
        while too_many - enough > 1:
            attempts += 1
            # In the middle where that does not help, as with turns of very different tokens.
            kept = bisect_right(sizes, room) - 1 if attempts <= _ATTEMPTS else (enough + too_many) // 2
            kept = min(max(kept, enough + 1), too_many - 1)
            text = messages(_without_middle(turns, kept))
            prompt, length = self._fitting(text)
            ends[prompt is None] = sizes[kept], length
            if prompt is None:
                too_many = kept
            else:
                fitting, enough = prompt, kept
            if len(ends) == 1:
                room = sizes[kept] + _characters(text) * (1 / length - 1)
            else:
                (fits, short), (does_not, long) = ends[False], ends[True]
                room = fits + (does_not - fits) * (1 - short) / (long - short)
        return _without_middle(turns, enough if fitting else too_many), fitting

    def _fitting(self, messages: list[Message]) -> tuple[Prompt | None, float]:
        """Return the prompt if it is not too long, and its length relative to the longest one."""
        length = _characters(messages) / self._max_characters
        if length > 1:
            return None, length
        prompt = self._prompt(messages)
        length = len(prompt.ids) / self._max_prompt_tokens
        return (prompt if length <= 1 else None), length


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def _without_middle(turns: Sequence[Turn], kept: int) -> Sequence[Turn]:
    before = kept // 2
    return [*turns[:before], *turns[len(turns) - kept + before :]]


def _texts(turn: Turn) -> Iterator[str]:
    yield from (turn.observation, turn.response)
    for question in turn.questions:
        yield from (question.query, question.answer)


def _shortened(turn: Turn, limit: int) -> Turn:
    questions = tuple(
        Question(query=_cut(item.query, limit), answer=_cut(item.answer, limit)) for item in turn.questions
    )
    return Turn(observation=_cut(turn.observation, limit), response=_cut(turn.response, limit), questions=questions)


def _cut(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and end of ``limit`` characters in all, with a statement of what is missing."""
    if len(text) <= limit:
        return text
    notice = f" … ({len(text) - limit} characters left out) … "
    half = max(1, (limit - len(notice)) // 2)
    return f"{text[:half]}{notice}{text[-half:]}"
