"""Episodes that the experience manager has not confirmed: lets the agent loops send them again, and counts them.

``rollout/unconfirmed.py`` keeps them; it sends them by itself whenever the manager has answered a rollout. At the end
of a step and before a checkpoint there may be no rollout.
"""

import time
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.waiting import wait_for
from verl_comprl.rollout.unconfirmed import send_unconfirmed

ANSWER_SECONDS = 5.0
"""Limit of one question to the agent loops, which is answered at once."""

_PAUSE = 0.1


class LateReports:
    """Those of all agent loops of a run."""

    def __init__(self, workers: Sequence[Any] = ()) -> None:
        """Look after the agent loops ``workers``, Ray actors."""
        self._workers = workers
        self.waiting = 0
        """Reports that waited when it was looked last."""
        self._dropped = 0
        self._told = 0

    def settle(self, seconds: float) -> bool:
        """Let the agent loops send again what waits, for at most ``seconds``; returns whether nothing waits any more.

        Returns at once if nothing does, and never raises: the watchdog tells of a worker that does not answer.
        """
        deadline = time.monotonic() + seconds
        while self._workers and self._look() and self.waiting and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return not self.waiting

    def metrics(self) -> dict[str, float]:
        """Return how many wait, and how many were given up since the last call."""
        dropped, self._told = self._dropped - self._told, self._dropped
        return {"comprl/unreported_waiting": float(self.waiting), "comprl/unreported_dropped": float(dropped)}

    def _look(self) -> bool:
        asked = [worker.__ray_call__.remote(send_unconfirmed) for worker in self._workers]
        try:
            counts = wait_for(asked, ANSWER_SECONDS, "the agent loops to report again")
        except (RayError, WaitTimeout):
            return False
        self.waiting, self._dropped = (sum(column) for column in zip((0, 0), *counts, strict=True))
        return True
