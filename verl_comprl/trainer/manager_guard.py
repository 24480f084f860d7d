"""Notices that the experience manager's process has died, and lets it begin again.

Ray starts the process again, so that all handles stay valid; until the bank is open again in it, calls raise
:class:`~verl_comprl.manager.messages.ManagerNotOpen`. Rollouts continue without guidance meanwhile.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import EmbedderUnavailable, StoreUnavailable
from verl_comprl.manager.actor import MANAGER_SECONDS
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.platform.deaths import ACTOR_AWAY
from verl_comprl.platform.waiting import holding, wait_for

LOOK_SECONDS = 2.0
"""Seconds between two liveness checks."""

RESTART_SECONDS = 120.0
"""Seconds that Ray may take to restart the manager's process."""

MAX_FAILURES = 3
"""Attempts in a row to let it begin again, after which the run is to end."""

LONGEST_PAUSE = 30.0
"""Most seconds between two attempts while store or embedder are away."""


class ManagerLost(RuntimeError):
    """The experience manager could not begin again, so the run is to end; a time-out would only cost a step."""


@dataclass
class _Outage:
    """Store or embedder are away, so that no attempt to begin again can succeed."""

    error: StoreUnavailable | EmbedderUnavailable
    since: float
    attempts: int = 0

    @property
    def again(self) -> StoreUnavailable | EmbedderUnavailable:
        """Its error for another call; one that is raised again and again gets an ever longer traceback."""
        return type(self.error)(str(self.error))


class ManagerGuard:
    """Looks at the manager from a thread, and before a call that failed because it had died is made again."""

    def __init__(
        self,
        manager: Any,
        restart: Callable[[], None],
        *,
        outage_seconds: float = 0.0,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the thread, which :meth:`start` starts.

        Args:
            manager: Handle of the experience manager, connected.
            restart: Opens the bank in a process that has just been started, and connects the extractor.
            outage_seconds: How long a store or embedder may be away meanwhile, before the run is to end; 0 has no end.
            then: Called by the thread after each look that finds a manager there.
        """
        self._manager = manager
        self._restart, self._then = restart, then
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manager-guard", daemon=True)
        self._error: Exception | None = None
        self._failures = 0
        """Attempts in a row that have failed, whoever made them."""
        self._not_before = 0.0
        self._outage_seconds = outage_seconds
        self._outage: _Outage | None = None
        self.restarts = 0
        """How often the manager has begun again."""

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop looking, after an attempt that is under way, or after ``seconds``.

        Returns:
            Whether the thread has ended; it may be waited for again.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def ask(self, call: Callable[[], Any], seconds: float, what: str) -> Any:
        """Return the result of a call to the manager, which is made again if its process died meanwhile.

        It may die again while it begins again, or in the call that is made again: some attempts are made before that
        ends the run, as in the thread.

        Args:
            call: Makes the remote call.
            seconds: Limit of one call.
            what: What is waited for, as it should read in an error.

        Raises:
            WaitTimeout: If it takes longer, or a part of beginning again does.
            StoreUnavailable: If it cannot begin again yet as its store is away; ``EmbedderUnavailable`` likewise.
            ManagerLost: If it could not begin again, several times in a row.
            ray.exceptions.RayError: What the manager raised, or that it dies whenever it is asked.
        """
        for _ in range(MAX_FAILURES):
            self._raise_if_lost()
            try:
                return wait_for(call(), seconds, what)
            except (*ACTOR_AWAY, ManagerNotOpen):
                try:
                    self.check(seconds)
                except (WaitTimeout, StoreUnavailable, EmbedderUnavailable):
                    raise
                except Exception:  # check has counted and told it, and waits before the next attempt
                    continue
        self._raise_if_lost()
        return wait_for(call(), seconds, what)

    def _raise_if_lost(self) -> None:
        if self._error is not None:
            raise ManagerLost(f"the experience manager could not be restarted: {self._error}") from self._error

    def check(self, seconds: float) -> None:
        """Let the manager begin again if its process has died.

        Args:
            seconds: How long to wait for another thread that lets it begin again.

        Raises:
            WaitTimeout: If that takes longer, or a part of beginning again does.
            Exception: What keeps it from beginning again.
        """
        with holding(self._lock, seconds, "the experience manager to begin again"):
            if self._outage and time.monotonic() < self._not_before:
                raise self._outage.again
            self._stopped.wait(max(0.0, self._not_before - time.monotonic()))
            try:
                self._restart_if_dead()
            except Exception as error:
                cause = getattr(error, "cause", None) or error  # what Ray raises has the remote traceback as its text
                if isinstance(cause, StoreUnavailable | EmbedderUnavailable):
                    self._note_outage(cause)
                    raise cause from error
                self._note_failure(error)
                raise
            self._failures, self._outage = 0, None

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        print(f"the experience manager could not be restarted: {error!r}", flush=True)
        self._not_before = time.monotonic() + LOOK_SECONDS * 2**self._failures
        if self._failures >= MAX_FAILURES:
            self._error = error

    def _note_outage(self, error: StoreUnavailable | EmbedderUnavailable) -> None:
        now = time.monotonic()
        if self._outage is None:
            until = f", for {self._outage_seconds:g} s" if self._outage_seconds else ""
            what = f"it is tried again{until}, and rollouts go on without experience"
            print(f"the experience manager cannot begin again, {what}: {error}", flush=True)
            self._outage = _Outage(error, now)
        self._outage.attempts += 1
        self._not_before = now + min(LOOK_SECONDS * 2**self._outage.attempts, LONGEST_PAUSE)
        if self._outage_seconds and now - self._outage.since >= self._outage_seconds:
            self._error = error

    def _restart_if_dead(self) -> None:
        if self._is_there():
            return
        if self._outage is None:
            print("the experience manager died; restarting it with the bank as stored", flush=True)
        self._restart()
        self.restarts += 1

    def _is_there(self) -> bool:
        try:
            return is_connected(self._manager)
        except WaitTimeout:  # it hangs, which a process of its own would not mend
            return True

    def _run(self) -> None:
        while self._error is None and not self._stopped.wait(LOOK_SECONDS):
            with suppress(Exception):  # check has counted and told it
                self.check(threading.TIMEOUT_MAX)  # nobody waits for this thread
                self._then()


def is_connected(manager: Any) -> bool:
    """Return whether the process of a manager has got its extractor, when it answers: Ray may be starting it again.

    Raises:
        WaitTimeout: If it is there, and does not answer.
        ray.exceptions.RayError: If it is not there after :data:`RESTART_SECONDS`.
    """
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            asked = manager.is_connected.remote()
            return wait_for(asked, MANAGER_SECONDS, "the experience manager to say whether it is there")
        except ACTOR_AWAY:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
