"""Trains the extractor: one CISPO step whenever the buffer holds a full batch.

On slots of its own that is a background thread, whose schedule is independent of the actor's steps; on those of the
actor the two take turns. Its failures are independent of the actor in any case: an update that fails is tried again
later, and after some failures in a row the extractor is no longer trained.
"""

import math
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from verl_comprl.errors import UpdateMade, WaitTimeout
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.manager.actor import MANAGER_SECONDS
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.platform.deaths import ACTOR_AWAY
from verl_comprl.platform.waiting import wait_for
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.step.metrics import update_metrics

POLL_SECONDS = 1.0
"""Seconds before the manager is asked again for a batch; at the end of a step, which makes most samples, at once."""
HELD_SECONDS = 0.05
"""Seconds between two checks while updates are held back."""
AWAY_SECONDS = 1.0
"""Seconds before a manager that died or timed out is asked again."""
FIRST_BACKOFF = 5.0
LONGEST_BACKOFF = 300.0
REST_FACTOR = 10
"""Times as long as the actor has waited in a turn for servers that nothing restored, until they are tried again."""


class _ManagerAway(Exception):
    """The experience manager's process has died, or does not answer in time, which is no failure of an update."""


class _MayNotBegin(Exception):
    """The update was held back, or the run stopped, while its servers were made to pause."""


class ExtractorLearner:
    """Takes batches from the manager's buffer and updates the extractor with them."""

    def __init__(self, extractor: ExtractorRuntime, manager: Any, *, max_failures: int) -> None:
        """Set up the thread, which :meth:`start` starts.

        Args:
            extractor: Engine and servers.
            manager: Handle of the experience manager.
            max_failures: Failures in a row after which learning stops; 0 lets the first one end the run.
        """
        self._extractor = extractor
        self._manager = manager
        self._max_failures = max_failures
        self._stopped = threading.Event()
        self._is_run_stopped: Callable[[], bool] = lambda: False
        self._held_back = threading.Event()
        self._has_samples = threading.Event()
        self._thread = threading.Thread(target=self._run, name="extractor-learner", daemon=True)
        self._error: Exception | None = None
        self._last: dict[str, float] = {}
        self._skipped = 0
        self._seconds = 0.0
        self.longest = 0.0
        """Seconds of the longest update so far."""
        self._failed = 0
        self._in_a_row = 0
        self._given_up = False
        self._not_before = 0.0

    def start(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Start the thread.

        Args:
            is_stopped: Says that the run was asked to stop: then no further update begins.
        """
        self._is_run_stopped = is_stopped
        self._thread.start()

    def take_turn(
        self, seconds: float, is_stopped: Callable[[], bool] = lambda: False, hurries: Callable[[], bool] | None = None
    ) -> None:
        """Update in the calling thread while full batches wait; the actor must have paused.

        Does not wait for work that an earlier turn has left behind, however many turns it takes to end.

        Args:
            seconds: After them no further update begins.
            is_stopped: Says that the run was asked to stop: then no further one begins either.
            hurries: Says that the present one is to be left behind if it takes long; by default that is a stop.

        Raises:
            RuntimeError: If an update failed and none may.
        """
        deadline = time.monotonic() + seconds
        self._extractor.hurries = hurries or is_stopped
        while not self._ended and self._not_before <= time.monotonic() < deadline and not is_stopped():
            if self._extractor.work_is_late:
                break
            began, restores = time.monotonic(), self._given_up
            if (pause := self._attempt(lambda: not is_stopped())) is None:
                break
            ended = time.monotonic()
            self._not_before = ended + (max(pause, REST_FACTOR * (ended - began)) if restores else pause)
        self._raise_error()

    def stop(self, seconds: float) -> bool:
        """Stop the thread after the update that is running, if any, or leave it behind after ``seconds``.

        Returns:
            Whether it has ended; it may be waited for again.
        """
        self._stopped.set()
        self._has_samples.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def hold_updates(self) -> None:
        """Let the thread begin no further update before :meth:`resume_updates`; turns (:meth:`take_turn`) are not held.

        Otherwise it would take the extractor's lock again at once while full batches wait, and a checkpoint would not
        get it: locks are not given in turn.
        """
        self._held_back.set()

    def resume_updates(self) -> None:
        """Let the thread update again."""
        self._held_back.clear()

    def note_samples(self) -> None:
        """Let the thread ask for a batch now: the manager has collected a step's samples."""
        self._has_samples.set()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last update, and totals; never waits.

        Raises:
            RuntimeError: If an update failed and none may.
        """
        self._raise_error()
        totals = {
            "updates": float(self._extractor.weight_version),
            "seconds": self._seconds,
            "failed": float(self._failed),
            "skipped": float(self._skipped),
            "given_up": float(self._given_up),
            "servers_lost": float(self._extractor.lost_servers),
        }
        return {f"comprl/extractor/{name}": value for name, value in (self._last | totals).items()}

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"an update of the extractor failed: {self._error}") from self._error

    @property
    def given_up(self) -> bool:
        """Whether the extractor is no longer trained, as too many updates in a row have failed."""
        return self._given_up

    @property
    def _ended(self) -> bool:
        return self._error is not None or (self._given_up and not self._extractor.is_down)

    def _run(self) -> None:
        while True:
            # Before all else: what comes from here on, a stop too, ends the wait for it.
            self._has_samples.clear()
            if self._ended or self._stopped.is_set():
                return
            # All waits are out of the lock: a checkpoint, and with it the actor's step, would wait.
            if not self._may_begin():
                self._stopped.wait(HELD_SECONDS)
            elif (pause := self._attempt(self._may_begin)) is None:
                self._has_samples.wait(POLL_SECONDS)
            else:
                self._stopped.wait(pause)

    def _may_begin(self) -> bool:
        return not (self._held_back.is_set() or self._stopped.is_set() or self._is_run_stopped())

    def _attempt(self, may_begin: Callable[[], bool]) -> float | None:
        """Update once; return the seconds until the next attempt is worth while, or None if no update was to begin."""
        if self._given_up:
            return self._try_to_restore(may_begin)
        try:
            updated = self._update_once(may_begin)
        except _MayNotBegin:
            return None
        except _ManagerAway:
            return AWAY_SECONDS
        except Exception as error:
            if isinstance(error, WaitTimeout) and self._extractor.hurries():  # it has not failed
                return AWAY_SECONDS
            return self._note_failure(error)
        if not updated:
            return None
        self._in_a_row = 0
        return 0.0

    def _try_to_restore(self, may_begin: Callable[[], bool]) -> float | None:
        """Let the servers answer again, though nothing is trained any more: what has been learned stays in use."""
        try:
            self._extractor.wait_for_late_work()
            with self._extractor.lock:
                if not may_begin():
                    return None
                self._extractor.restore()
        except Exception:  # of which there were as many as are told
            return LONGEST_BACKOFF
        print("the extractor's servers answer again", flush=True)
        return 0.0

    def _note_failure(self, error: Exception) -> float:
        self._in_a_row += 1
        self._failed += 1
        backoff = min(FIRST_BACKOFF * 2 ** (self._in_a_row - 1), LONGEST_BACKOFF)
        if self._in_a_row >= self._max_failures:
            self._end(error)
        else:
            self._say(f"an update of the extractor failed, the next attempt is in {backoff:g} s", error)
        return backoff

    def _end(self, error: Exception) -> None:
        if self._max_failures == 0:
            self._error = error
            return
        self._given_up = True
        self._say(
            f"the extractor is not trained any more: {self._max_failures} updates in a row failed; "
            "the run continues, with the extractor and the experience as they are",
            error,
        )

    def _say(self, what: str, error: Exception) -> None:
        """Print a line, and the first traceback; the launcher redirects it to train.log."""
        print(f"{what}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
        if self._failed == 1:
            print("".join(traceback.format_exception(error)), flush=True)

    def _update_once(self, may_begin: Callable[[], bool]) -> bool:
        """Update and return True, unless there is no batch, or an update may not begin any more when all is there."""
        self._extractor.wait_for_late_work()  # out of the lock, see above
        # One lock from next_batch to trained, since next_batch leaves the samples in the buffer. A checkpoint takes the
        # same lock: taken between the two, it would hold the updated weights and still the samples, and a resumed run
        # would train on them twice.
        with self._extractor.lock:
            if not may_begin():
                return False
            self._extractor.restore()
            version = self._extractor.weight_version
            taking = self._manager.next_batch.remote(version)
            batch: TrainingBatch | None = self._ask(taking, "a batch from the experience manager")
            if batch is None or not may_begin():
                return False
            started = time.perf_counter()
            with self._extractor.changing_weights():
                if not may_begin():  # to pause the servers may have taken minutes
                    raise _MayNotBegin  # raised, since servers that did not have to pause are then left alone
                try:
                    measured = self._extractor.update(batch)
                except (WaitTimeout, UpdateMade):
                    # The engine may still take the step, or has taken it. To train on a batch twice is worse than to
                    # lose one.
                    self._count_trained()
                    raise
                # Before the servers get the weights: should that fail, the batch has been trained on all the same. If
                # the update fails, its samples stay in the buffer, and the next attempt takes them again.
                self._count_trained()
            seconds = time.perf_counter() - started
        self._seconds += seconds
        self.longest = max(self.longest, seconds)
        self._last = measured | update_metrics(batch, version)
        self._skipped += not math.isfinite(measured["grad_norm"])  # verl's engine then leaves the weights as they are
        return True

    def _count_trained(self) -> None:
        self._ask(self._manager.trained.remote(), "the experience manager to count a batch as trained")

    @staticmethod
    def _ask(reference: Any, what: str) -> Any:
        try:
            return wait_for(reference, MANAGER_SECONDS, what)
        except (*ACTOR_AWAY, ManagerNotOpen, WaitTimeout) as error:
            raise _ManagerAway from error
