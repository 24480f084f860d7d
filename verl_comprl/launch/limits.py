"""Time limits of the launcher, and the one loop in which it waits."""

import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

LOST = 71
"""Exit code where a node, or the connection to it, was lost (``EX_OSERR``)."""

_POLL_SECONDS = 0.5

Value = TypeVar("Value")


class LaunchError(Exception):
    """Why the cluster cannot be formed or kept; ends the run on all nodes with :data:`LOST`."""


def reason(error: LaunchError | OSError, rank: int) -> str:
    """Return why a node ends the run.

    Args:
        error: What was raised there; an ``OSError``, such as a full disk or a missing ``RAY_TMPDIR``, names no node.
        rank: The node.
    """
    return str(error) if isinstance(error, LaunchError) else f"node {rank}: {error}"


def number(environment: Mapping[str, str], name: str, default: float | None = None) -> float:
    """Return a variable's number.

    Args:
        environment: The variables.
        name: The variable.
        default: What it is if it is not set, or empty.

    Raises:
        KeyError: If it is not set and there is no default.
        ValueError: If it is no number.
    """
    given = environment.get(name) or default
    if given is None:
        raise KeyError(name)
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"{name}={given} is no number") from None


def join_seconds() -> float:
    """Return how long nodes wait for one another (``COMPRL_JOIN_SECONDS``, 300)."""
    return number(os.environ, "COMPRL_JOIN_SECONDS", 300)


def leave_seconds() -> float:
    """Return how long a process may take to end (``COMPRL_LEAVE_SECONDS``, 45; Ray drains a node for up to 30)."""
    return number(os.environ, "COMPRL_LEAVE_SECONDS", 45)


def poll_until(condition: Callable[[], Value], seconds: float = float("inf")) -> Value:
    """Return the first true value of ``condition``, or its last one when ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return value
