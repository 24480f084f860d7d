"""Finds out that a process which the actor needs has died.

verl waits for its prompts without a limit and does not look at who plays them: Ray kills the youngest workers of a
machine that runs out of memory, for example, and the run would wait for ever. The main thread looks while it waits for
rollouts, and where something has failed; a thread of the watchdog (``deaths``) all the time.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from verl_comprl.manager.server_calls import is_dead, raise_if_dead

LOOK_SECONDS = 2.0
"""Seconds between two liveness checks."""

ANSWER_SECONDS = 10.0
"""Seconds for an answer, once something has failed; the last look may take :data:`LOOK_SECONDS` more."""

_PAUSE = 0.2
"""Seconds until one that cannot be reached is asked again, once something has failed."""


class ProcessLost(RuntimeError):
    """A process that the actor needs has died; the message says which and, as far as Ray knows, why."""


class VitalActors:
    """Asks Ray now and then whether actors live, without waiting for an answer; for several threads.

    A death that one of them has found is raised in all of them, until other actors are watched.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._actors: Mapping[str, Any] = {}
        self._servers: Mapping[str, Any] = {}
        self._forgotten: set[str] = set()
        self._kept: set[str] | None = None
        """All that are looked at for the time being; None if none are left out."""
        self._asked: dict[Any, str] = {}
        self._next_look = 0.0
        self._lost: ProcessLost | None = None
        self._lock = threading.Lock()

    def watch(self, actors: Mapping[str, Any], servers: Mapping[str, Any] | None = None) -> None:
        """Look at these actors from now on, and at no others; at none, if they may end.

        Args:
            actors: Handles by name.
            servers: Those of vLLM servers, whose actor answers also when the process of its engine has died.
        """
        with self._lock:
            self._actors, self._servers, self._forgotten = actors, servers or {}, set()
            self._begin_again()

    def forget(self, names: Iterable[str]) -> None:
        """Look at these actors no more: they may end."""
        with self._lock:
            self._forgotten |= set(names)
            self._begin_again()

    @contextmanager
    def only(self, names: Iterable[str]) -> Iterator[None]:
        """Look at no others but these of the actors during the block, which can do without the rest."""
        with self._lock:
            before, self._kept = self._kept, set(names)
            self._begin_again()
        try:
            yield
        finally:
            with self._lock:
                self._kept = before
                self._begin_again()

    def _begin_again(self) -> None:
        """Drop what was found out about actors that may be looked at no longer."""
        self._asked, self._lost = {}, None

    def _watched(self, actors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, actor in actors.items():
            if name not in self._forgotten and (self._kept is None or name in self._kept):
                yield name, actor

    def check(self) -> None:
        """Look, if it is time again.

        Raises:
            ProcessLost: If one has died.
        """
        with self._lock:
            now = time.monotonic()
            if self._lost is None and now >= self._next_look:
                self._next_look = now + LOOK_SECONDS
                self._look(0)
            if self._lost is not None:  # whichever thread has found it
                raise ProcessLost(str(self._lost)) from self._lost.__cause__

    def blame(self, error: Exception) -> None:
        """Look at once, and wait for the answers: what has failed may have, because a process has died.

        Args:
            error: What was raised.

        Raises:
            ProcessLost: If one has died; ``error`` is its cause.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        with self._lock:
            self._asked = {}  # an answer that waits to be read may be from before the death
            # In parts: Ray may call one that has died unavailable at first, while another is busy and silent.
            while self._lost is None and not self._look(LOOK_SECONDS) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            lost = self._lost
        if lost is not None:
            raise ProcessLost(str(lost)) from error

    def _look(self, seconds: float) -> bool:
        """Ask those that are not being asked yet, and read the answers that come within ``seconds``.

        One that Ray calls unavailable is asked again by the next look: Ray says so where a connection has broken, and
        of one that has died until it knows of the death. One that stays unavailable is one that does not answer: as for
        those that hang, the watchdog names it, and ends a run that does not get on.

        Returns:
            Whether all are there; one that has died is noted.
        """
        waiting = set(self._asked.values())
        for name, actor in self._watched(self._actors):
            if name not in waiting:
                self._asked[actor.__ray_ready__.remote()] = name
        for name, server in self._watched(self._servers):
            if name not in waiting:
                self._asked[server.__ray_call__.remote(raise_if_dead)] = name
        if not self._asked:
            return True
        all_there = True
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=seconds)
        for reference in answered:
            name = self._asked.pop(reference)
            try:
                ray.get(reference)
            except RayError as error:
                if is_dead(error):
                    self._lost = ProcessLost(f"{name} has died, so the run cannot go on: {error}")
                    self._lost.__cause__ = error
                    return False
                # Others have answered, if only to complain.
                all_there = all_there and not isinstance(error, ActorUnavailableError)
        return all_there and not self._asked
