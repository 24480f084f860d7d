"""Episodes that the experience manager has not confirmed: lets the agent loops send them again, and counts them.

``rollout/unconfirmed.py`` keeps them; it sends them by itself whenever the manager has answered a rollout. At the end
of a step, before a checkpoint and at the end of a run there may be no rollout.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from verl_comprl.display.units import counted
from verl_comprl.manager.actor import MANAGER_SECONDS
from verl_comprl.platform.deaths import ACTOR_DIED
from verl_comprl.platform.under_way import doing
from verl_comprl.rollout.unconfirmed import send_unconfirmed

REPORT_SECONDS = 5.0
"""Seconds that the end of a step waits for reports that are sent again."""

_LOOK_SECONDS = 0.5
"""Seconds to wait for an agent loop that is busy, before those that have answered are asked again."""

_PAUSE = 0.1


class EpisodesMissing(RuntimeError):
    """A checkpoint would lack episodes whose tokens it may have: a resumed run would train them, and teach nobody."""


class LateReports:
    """Those of all agent loops of a run."""

    def __init__(self, workers: Sequence[Any] = (), is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Look after the agent loops ``workers``, Ray actors.

        Args:
            workers: The agent loops.
            is_stopped: Says that nobody wants to wait any more.
        """
        self._workers = dict(enumerate(workers))
        self._is_stopped = is_stopped
        self._counts: dict[int, tuple[int, int]] = {place: (0, 0) for place in self._workers}
        """Of each agent loop, what it has answered last: reports that wait, and those that were given up."""
        self._asked: dict[int, Any] = {}
        """Questions that were not answered yet."""
        self._died = 0
        self._told = 0

    @property
    def waiting(self) -> int:
        """Reports that waited when it was looked last."""
        return sum(waiting for waiting, _ in self._counts.values())

    @property
    def missing(self) -> str:
        """Why the manager may lack episodes, as of the last :meth:`settle`; empty if it gets no more of them."""
        reasons = []
        if self.waiting:
            reasons.append(f"{counted(self.waiting, 'episode is', 'episodes are')} not confirmed by the manager")
        if self._asked:
            silent = counted(len(self._asked), "agent loop does", "agent loops do")
            reasons.append(f"{silent} not say whether episodes wait there")
        return ", ".join(reasons)

    @property
    def lost(self) -> str:
        """Why it may never get some of them; empty after a stop, which ends agent loops with what they keep."""
        died = counted(self._died, "agent loop has", "agent loops have")
        return f"{died} died with the episodes that waited there" if self._died and not self._is_stopped() else ""

    @contextmanager
    def told(self, *errors: type[Exception]) -> Iterator[None]:
        """Print what is missing when the block has ended, be it with one of ``errors``, which goes no further."""
        reason = ""
        try:
            yield
        except errors as error:
            reason = f" ({error})"
        if self.missing:
            print(f"{self.missing}{reason}", flush=True)

    def settle(self, seconds: float) -> bool:
        """Let the agent loops send again what waits, for at most ``seconds``; returns whether nothing waits any more.

        Returns at once if nothing does, and never raises. An agent loop that does not answer counts as one where
        something waits; what waited in one that has died is lost. After a stop it takes at most ``MANAGER_SECONDS``.
        """
        deadline, stopped = time.monotonic() + seconds, False
        self._asked.clear()  # an answer to an earlier question may be older than what waits now
        with doing("waiting for the agent loops to report again", has_limit=True):
            while True:
                self._look(deadline)
                now = time.monotonic()
                if not stopped and self._is_stopped():
                    stopped, deadline = True, min(deadline, now + MANAGER_SECONDS)
                if not self.missing or now >= deadline:
                    return not self.missing
                time.sleep(_PAUSE)

    def settle_with(self, ask: Callable[[Callable[[], Any], float, str], Any], manager: Any, seconds: float) -> bool:
        """Settle as the end of a step does; if something waits after that, wait for the manager, then settle again.

        Args:
            ask: Asks the manager, which may hang or begin again (:meth:`~.manager_guard.ManagerGuard.ask`).
            manager: The experience manager.
            seconds: Limit of its answer, and of all this; but after it has answered, ``MANAGER_SECONDS`` in any case.

        Raises:
            Exception: What ``ask`` raises.
        """
        deadline = time.monotonic() + seconds
        if self.settle(REPORT_SECONDS):
            return True
        ask(manager.metrics.remote, seconds, "the experience manager to answer")
        return self.settle(max(MANAGER_SECONDS, deadline - time.monotonic()))

    def metrics(self) -> dict[str, float]:
        """Return how many wait, and how many were given up since the last call."""
        total = sum(dropped for _, dropped in self._counts.values())
        dropped, self._told = total - self._told, total
        return {"comprl/unreported_waiting": float(self.waiting), "comprl/unreported_dropped": float(dropped)}

    def _look(self, deadline: float) -> None:
        """Ask those agent loops that have no question to answer yet, and take what is answered soon."""
        for place, worker in self._workers.items():
            if place not in self._asked:
                self._asked[place] = worker.__ray_call__.remote(send_unconfirmed)
        if not self._asked:
            return
        limit = max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=limit)
        for place, question in list(self._asked.items()):
            if question in ready:
                self._take(place, question)

    def _take(self, place: int, question: Any) -> None:
        try:
            self._counts[place] = ray.get(question)
        except ACTOR_DIED:  # a stop has ended it, or its death ends the run
            waiting, dropped = self._counts[place]
            self._counts[place] = 0, dropped + waiting
            del self._workers[place]
            self._died += 1
        except RayError:  # it is asked again, and has not answered until then
            self._asked[place] = self._workers[place].__ray_call__.remote(send_unconfirmed)
            return
        del self._asked[place]
