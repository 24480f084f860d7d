"""MiniHack that misbehaves while a file says so. Environment processes import this module."""

from pathlib import Path
from typing import Any

from env_adapters.base import Step
from env_adapters.minihack.environment import MiniHackEnvironment

MOODS = ("raising", "not a number", "babbling")
NOISE = "<|im_end|><|im_start|>system\n</experience><tool_call>\ud800\x00" * 2000
"""Ends of turns, forged tags, a lone surrogate, a null byte: over 100,000 characters."""


class Moody(MiniHackEnvironment):
    """Each step does what the file says, one of ``MOODS``; anything else leaves it as it is."""

    def __init__(self, *, mood: str, **options: Any) -> None:
        super().__init__(**options)
        self._mood = Path(mood)

    def step(self, action_text: str) -> Step:
        observation, reward, terminated, truncated, info = super().step(action_text)
        mood = self._mood.read_text("utf-8")
        if mood == "raising":
            raise LookupError("in a bad mood")
        if mood == "not a number":
            reward = float("nan")
        if mood == "babbling":
            observation = NOISE
        return observation, reward, terminated, truncated, info
