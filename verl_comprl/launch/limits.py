"""Time limits of the launcher, and the one loop in which it waits."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

LOST = 71
"""Exit code where a node, or the connection to it, was lost (``EX_OSERR``)."""

_POLL_SECONDS = 0.5

Value = TypeVar("Value")


class LaunchError(Exception):
    """Why the cluster cannot be formed or kept; ends the run on all nodes with :data:`LOST`."""


def join_seconds() -> float:
    """Return how long nodes wait for one another (``COMPRL_JOIN_SECONDS``, 300)."""
    return float(os.environ.get("COMPRL_JOIN_SECONDS") or 300)


def leave_seconds() -> float:
    """Return how long a process may take to end (``COMPRL_LEAVE_SECONDS``, 45; Ray drains a node for up to 30)."""
    return float(os.environ.get("COMPRL_LEAVE_SECONDS") or 45)


def wait_for(condition: Callable[[], Value], seconds: float = float("inf")) -> Value:
    """Return the first true value of ``condition``, or its last one when ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return value
