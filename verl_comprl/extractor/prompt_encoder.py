"""Prompts of the extractor's calls as tokens; an episode that is too long for one is shortened from its middle."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Protocol

from verl_comprl.experience.schema import DistillationRequest, Question, Turn
from verl_comprl.extractor.prompts import Message, distill_messages, render_trajectory
from verl_comprl.extractor.prompts.quoting import Quote, quoted
from verl_comprl.untrusted import CHARACTERS_PER_TOKEN, without_control_tokens

_SHORTEST_TEXT = 200
"""Characters to which an observation or a response may be cut, so that an episode fits into a prompt."""
_SHARE_OF_SIMILAR = 0.5
"""Of a prompt, for the entries listed besides those which the episode read; the rest is for the episode. Entries
of many rare characters would take the place of every episode that they are near to."""
_ATTEMPTS = 6
"""To find out by their lengths how many turns fit."""
_USUAL = 4
"""Characters of a token, about; only the first attempt to shorten the first episode depends on it."""
_FRAME = len(render_trajectory([Turn(observation="", response="")]))
"""Characters of a turn in a prompt that are not its texts."""


class PromptTooLong(ValueError):
    """A prompt is longer than the extractor reads."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as chat messages, and as the token ids that the encoder's tokenizer makes of them."""

    messages: list[Message]
    ids: list[int]


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that are used here."""

    def apply_chat_template(self, conversation: list[Message], **kwargs: Any) -> Any:
        """Render messages to token ids."""
        ...

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """Decode token ids to text."""
        ...


class PromptEncoder:
    """Encodes messages, and as much of an episode as a prompt has room for."""

    def __init__(self, tokenizer: Tokenizer, *, max_prompt_tokens: int, max_operations: int, votes: bool) -> None:
        """Set up prompts of at most ``max_prompt_tokens``; the arguments are those of ``ExtractorCalls``."""
        self._tokenizer = tokenizer
        self._max_prompt_tokens = max_prompt_tokens
        self._max_characters = CHARACTERS_PER_TOKEN * max_prompt_tokens
        self._max_operations = max_operations
        self._votes = votes
        self._room = float(_USUAL * max_prompt_tokens)
        """Characters of turns for which the last prompts had room."""

    def quote(self, text: str, *, part: str = "") -> str:
        """Make a text a part of a prompt for this tokenizer; one that is too long for any stays so, as it is."""
        return text if len(text) > self._max_characters else quoted(text, part=part, tokenizer=self._tokenizer)

    def encode(self, messages: list[Message]) -> Prompt:
        """Encode messages, without what a tokenizer would take for control tokens.

        Raises:
            PromptTooLong: They have more characters than any prompt that fits. One with more tokens is returned.
        """
        if (characters := _characters(messages)) > self._max_characters:
            raise PromptTooLong(f"a prompt of {characters} characters exceeds {self._max_prompt_tokens} tokens")
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

    def encode_episode(self, request: DistillationRequest, similar: Sequence[str]) -> tuple[Prompt, int, int]:
        """Encode an episode, and return the numbers of entries listed that it read, and of all that are listed.

        Of the similar entries, list the first ones that fit into their share. Until the prompt fits, drop turns from
        its middle, then cut long texts in their middle, then drop entries from the end of the list, but not the guide.
        Start and end matter most: the first shows the situation, the last what decided the outcome.
        """
        read, similar = list(request.experience_texts), list(similar)
        while similar:
            _, length = self._fitting([{"role": "user", "content": "\n\n".join(similar)}])
            if length <= _SHARE_OF_SIMILAR:
                break
            similar.pop()
        final = request.final_observation
        quote: Quote = cache(self.quote)  # most texts are those of the attempt before

        def messages(turns: Sequence[Turn]) -> list[Message]:
            return distill_messages(
                request.instructions,
                request.goal,
                read,
                render_trajectory(turns, final, left_out=len(request.turns) - len(turns), quote=quote),
                request.outcome.success,
                self._max_operations,
                similar=similar,
                votes=self._votes,
                quote=quote,
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
                return self.encode(messages(turns)), 0, 0  # rules, task or guide alone are too long: it is refused
        return prompt, len(read), len(read) + len(similar)

    def _with_most_turns(
        self, turns: Sequence[Turn], messages: Callable[[Sequence[Turn]], list[Message]]
    ) -> tuple[Sequence[Turn], Prompt | None]:
        """Return the most turns with which a prompt fits, and that prompt; or first and last turn, if they do not.

        Encoding takes milliseconds for each thousand tokens, so a long episode begins at what fitted in those before,
        and goes on where the lengths so far say that it does.
        """
        until = [0, *accumulate(_FRAME + sum(map(len, _texts(turn))) for turn in turns)]
        sizes = [until[kept // 2] + until[-1] - until[len(turns) - kept + kept // 2] for kept in range(len(turns) + 1)]
        room, enough, too_many = self._room, min(len(turns), 2) - 1, len(turns) + 1
        fitting, ends = None, dict[bool, tuple[int, float]]()
        tried = set[int]()
        while too_many - enough > 1:
            # In the middle where that does not help, as with turns of very different tokens.
            kept = bisect_right(sizes, room) - 1 if len(tried) < _ATTEMPTS else (enough + too_many) // 2
            kept = min(max(kept, enough + 1), too_many - 1)
            tried.add(kept)
            text = messages(_without_middle(turns, kept))
            prompt, length = self._fitting(text)
            ends[prompt is None] = sizes[kept], length
            if prompt is None:
                too_many = kept
            else:
                fitting, enough = prompt, kept
                self._room = max(self._room, sizes[kept])
            if len(ends) == 1:
                room = sizes[kept] + _characters(text) * (1 / length - 1)
            else:
                (fits, short), (does_not, long) = ends[False], ends[True]
                self._room = room = fits + (does_not - fits) * (1 - short) / (long - short)
        # To say that one turn is left out may take more tokens than an empty turn has.
        if too_many == len(turns) - 1 and len(turns) not in tried:
            prompt, _ = self._fitting(messages(turns))
            if prompt is not None:
                return turns, prompt
        return _without_middle(turns, enough if fitting else too_many), fitting

    def _fitting(self, messages: list[Message]) -> tuple[Prompt | None, float]:
        """Return the prompt if it is not too long, and its length relative to the longest one."""
        length = _characters(messages) / self._max_characters
        if length > 1:
            return None, length
        prompt = self.encode(messages)
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
