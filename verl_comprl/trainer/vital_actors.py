"""Ends a run whose batch can never become full, because a process that its rollouts need has died.

verl waits for its prompts without a limit and does not look at who plays them: Ray kills the youngest workers of a
machine that runs out of memory, for example, and the run would wait for ever.
"""

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

LOOK_SECONDS = 2.0
"""Between two looks."""


class ProcessLost(RuntimeError):
    """A process that the rollouts need has died; the message says which and, as far as Ray knows, why."""


class VitalActors:
    """Asks Ray now and then whether actors live, without waiting for an answer."""

    def __init__(self) -> None:
        """Begin with none."""
        self._actors: Mapping[str, Any] = {}
        self._asked: dict[Any, str] = {}
        self._next_look = 0.0

    def watch(self, actors: Mapping[str, Any]) -> None:
        """Look at these actors from now on, handles by name, and at no others."""
        self._actors, self._asked = actors, {}

    def check(self) -> None:
        """Look, if it is time again.

        Raises:
            ProcessLost: If one has died.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        waiting = set(self._asked.values())
        for name, actor in self._actors.items():
            if name not in waiting:
                self._asked[actor.__ray_ready__.remote()] = name
        if not self._asked:
            return
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for reference in answered:
            name = self._asked.pop(reference)
            try:
                ray.get(reference)
            except RayActorError as error:
                raise ProcessLost(f"{name} has died, so the rollouts cannot be completed: {error}") from error
            except RayError:  # it has answered, if only to complain
                continue
