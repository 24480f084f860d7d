"""Language-model servers that only wait: as long as a real one would compute, then tokens of the wanted number."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from verl.workers.rollout.replica import TokenOutput


@dataclass(frozen=True)
class Speed:
    """How long a request takes."""

    prefill: float = 1 / 8000
    """Seconds per prompt token that the server has not seen yet in this conversation."""
    decode: float = 0.02
    """Seconds per generated token when the server is idle."""
    load: float = 1.0
    """Factor for the requests that it works on at the same time."""

    def seconds(self, new_tokens: int, generated: int) -> float:
        """Return the time of a request."""
        return (new_tokens * self.prefill + generated * self.decode) * self.load


class TimedServer:
    """In the place of verl's client; what it returns follows from seed, conversation and turn."""

    def __init__(
        self,
        texts: Sequence[list[int]],
        end: int,
        speed: Speed,
        *,
        seed: str,
        lengths: tuple[int, int] | None = None,
        name: Callable[[str], str] = str,
    ) -> None:
        """Set up.

        Args:
            texts: Tokens of turns, of which one is drawn for each.
            end: Last token of a turn.
            speed: Time per request.
            seed: Of what is drawn.
            lengths: Smallest and largest number of tokens of a turn, to which its text is repeated or cut.
            name: Returns of a conversation's id what its turns are drawn from: those of the same name have equal turns.
        """
        self._texts, self._end, self._speed, self._lengths, self._seed = texts, end, speed, lengths, seed
        self._name = name
        self._seen: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Wait, and return a turn."""
        self._turns[request_id] += 1
        random = Random(f"{self._seed} {self._name(request_id)} {self._turns[request_id]}")
        text = random.choice(self._texts)
        count = min(random.randint(*self._lengths) if self._lengths else len(text) + 1, sampling_params["max_tokens"])
        await asyncio.sleep(self._speed.seconds(len(prompt_ids) - self._seen[request_id], count))
        self._seen[request_id] = len(prompt_ids) + count
        ids = [*(text * (count // len(text) + 1))[: count - 1], self._end]
        versions = {"min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * count, extra_fields=versions)
