"""Checks of what an environment answers: its process plays untrusted actions and may send anything."""

import math
from reprlib import repr as shortened
from typing import Any

from env_adapters.host.worker import EnvironmentFailure

_FLOAT32_MAX = float.fromhex("0x1.fffffep127")
"""Largest float32; a trainer stores rewards as float32."""
_DEEPEST = 64
"""Levels of a tool's schema."""


def check_texts(observation: Any, info: Any) -> None:
    """Check that there is an observation, and with it a mapping whose goal, if there is one, is a text.

    Raises:
        TypeError: If not.
    """
    if not isinstance(observation, str):
        raise TypeError(f"the observation is {shortened(observation)}, which is no text")
    if not isinstance(info, dict):
        raise TypeError(f"the info is {shortened(info)}, which is no mapping")
    if not isinstance(goal := info.get("goal", ""), str):
        raise TypeError(f"the goal is {shortened(goal)}, which is no text")


def check_number(name: str, value: float) -> None:
    """Check that a number can be learned from.

    Raises:
        ValueError: If it is not finite as a float32. ``TypeError`` or ``OverflowError`` if it is no such number at all.
    """
    if not math.isfinite(value) or abs(value) > _FLOAT32_MAX:
        raise ValueError(f"the {name} is {value!r}, which is not finite as a float32")


def check_tools(tools: Any) -> None:
    """Check that an environment's tools are schemas that can be cleaned and rendered, level by level.

    Raises:
        EnvironmentFailure: If they are no list of mappings, or nested too deep.
    """
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise EnvironmentFailure(f"the tools are {shortened(tools)}, which is no list of schemas")
    level: list[Any] = tools
    for _ in range(_DEEPEST):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [part for each in parts for part in each]
        if not level:
            return
    raise EnvironmentFailure(f"a tool's schema has more than {_DEEPEST} levels")
