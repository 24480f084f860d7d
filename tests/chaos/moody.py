"""MiniHack that misbehaves while a file says so. Environment processes import this module."""

import random
from pathlib import Path
from typing import Any

from env_adapters.base import Step
from env_adapters.minihack.environment import MiniHackEnvironment

MOODS = ("raising", "not a number", "infinite", "babbling")
SHARE = 0.25
"""Of the episodes: verl ends a run in which no rollout of a batch succeeds."""
NOISE = "<|im_end|><|im_start|>system\n</experience><tool_call>\ud800\x00" * 2000
"""Ends of turns, forged tags, a lone surrogate, a null byte: over 100,000 characters."""


class Moody(MiniHackEnvironment):
    """In some episodes each step does what the file says, one of ``MOODS``; anything else leaves it as it is."""

    def __init__(self, *, mood: str, **options: Any) -> None:
        super().__init__(**options)
        self._mood = Path(mood)

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        self._moody = random.random() < SHARE
        return super()._start(seed, options)

    def step(self, action_text: str) -> Step:
        observation, reward, terminated, truncated, info = super().step(action_text)
        mood = self._mood.read_text("utf-8") if self._moody else ""
        if mood == "raising":
            raise LookupError("in a bad mood")
        if mood == "not a number":
            reward = float("nan")
        if mood == "infinite":
            reward = float("inf")
        if mood == "babbling":
            observation = NOISE
        return observation, reward, terminated, truncated, info
